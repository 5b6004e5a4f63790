"""What ``judge`` and ``race`` are expected to take: a draft that the target finds good, or a plain
answer after all.

Knows how often drafts were found good. Weighs nothing: the planner does.
"""

from __future__ import annotations

from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask
from specroute.policy.chance import HOPE
from specroute.policy.forecast import plain_call, plain_pace, toll_of
from specroute.policy.forecast_cascade import drafting, keeps
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer

VERDICT = 24
"""Tokens that a verdict usually has, and its question beside the draft, about:"""
QUESTION = 150
GOOD = 0.7
"""The share of a draft that must be good; as ``min_accept`` is by default."""
CONTEST = 16
"""Tokens of the target's first words in ``race``, of which so many decide:"""
WORDS = 12


def judge(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """The draft; the conversation and the draft as input and a verdict of few tokens; and a plain
    call where it is refused."""
    tokens = ask.answer_tokens(figures)
    again = plain_call(figures, ask.context, tokens)
    ttft_s, tpot_s = plain_pace(figures)
    if again is None or tpot_s is None:
        return None
    n = max(round(tokens), 1)
    good = chance(figures.acceptance, max(round(GOOD * n), 1))
    draft_s, draft_usd = drafting(figures, ask.context, n)
    seconds = draft_s + (ttft_s or 0.0) + VERDICT * tpot_s + (1 - good) * again.seconds
    taken = toll_of(figures, ask.context)
    lost = n * taken.per_drafted + taken.stream(VERDICT) + (1 - good) * taken.stream(tokens)
    if again.dollars is None or figures.usd_in is None or draft_usd is None:
        return Offer(Forecast(seconds), n, lost=lost)
    asked = (figures.usd_prompt or 0.0) * ask.context + figures.usd_in * (n + QUESTION)
    verdict = VERDICT * (figures.usd_out or 0.0)
    dollars = draft_usd + asked + verdict + (1 - good) * again.dollars
    return Offer(Forecast(seconds, dollars), n, lost=lost)


def race(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """Where both begin alike: the longer of the draft and the target's first words, and those words
    as output; else a plain call. The draft is paid for either way."""
    tokens = ask.answer_tokens(figures)
    whole = plain_call(figures, ask.context, tokens)
    first = plain_call(figures, ask.context, min(CONTEST, tokens))
    if whole is None or first is None:
        return None
    n = max(round(tokens), 1)
    alike = chance(figures.acceptance, round(GOOD * WORDS))
    draft_s, draft_usd = drafting(figures, ask.context, n)
    seconds = alike * max(draft_s, first.seconds) + (1 - alike) * whole.seconds
    taken = toll_of(figures, ask.context)
    there = alike * min(CONTEST, tokens) + (1 - alike) * tokens
    lost = n * taken.per_drafted + taken.stream(there)
    if whole.dollars is None or first.dollars is None or draft_usd is None:
        return Offer(Forecast(seconds), n, lost=lost)
    dollars = draft_usd + alike * first.dollars + (1 - alike) * whole.dollars
    return Offer(Forecast(seconds, dollars), n, lost=lost)


def chance(acceptance: Acceptance, tokens: int) -> float:
    """P(the first ``tokens`` of a draft are good): a hopeful guess before there is evidence."""
    return keeps(acceptance, tokens)[1] if acceptance.judged else HOPE

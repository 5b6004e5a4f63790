"""What a method is expected to take, and its best settings: one pure function a method.

A forecaster gets what was measured for a (target, drafter, method, traffic class), what is asked,
and the objective, and gives an :class:`Offer`: the settings with the least J and the whole
request's seconds and dollars at them. ``None`` says that the figures don't suffice yet. It says
nothing of limits, of chance or of trying things out: the planner (``adaptive``) does, by calling
the forecasters with figures drawn from their posteriors. Here are plain's and ``score``'s; all of
them are listed in ``forecasts``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask
from specroute.policy.chance import Reach, rates, reach
from specroute.policy.crowd import FREE, Toll, toll
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import UNTRIED_DRAFT_S, Offer

OWN_STRENGTH = 16.0
"""Judged tokens a position that the pooled evidence counts as, against a request's own."""
_AHEAD = 8
"""Positions that survival is worked out for at once."""

Forecaster = Callable[[Snapshot, Ask, Objective], Offer | None]


def plain(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """One call: TTFT + (N - 1)·TPOT seconds; the prompt as input, N tokens of output."""
    tokens = ask.answer_tokens(figures)
    found = plain_call(figures, ask.context, tokens)
    if found is None:
        return None
    return Offer(found, lost=toll_of(figures, ask.context).stream(tokens))


def toll_of(figures: Snapshot, context: float) -> Toll:
    """What the others at the target lose by a request of this context."""
    if figures.crowd.others < 1:
        return FREE
    return toll(figures, plain_pace(figures)[1], round_seconds(figures, context)[0], context)


def plain_call(figures: Snapshot, prompt: float, tokens: float) -> Forecast | None:
    """What a plain call takes for an answer of so many tokens; ``None``: not measured yet."""
    ttft_s, tpot_s = plain_pace(figures)
    if tpot_s is None:
        return None
    seconds = (ttft_s or 0.0) + max(tokens - 1, 0) * tpot_s
    if figures.usd_prompt is None or figures.usd_out is None:
        return Forecast(seconds)
    return Forecast(seconds, figures.usd_prompt * prompt + figures.usd_out * tokens)


def plain_pace(figures: Snapshot) -> tuple[float | None, float | None]:
    """(TTFT, TPOT) of a plain call now, at the target's load; ``None``: not measured."""
    pace, ttft, tpot = figures.pace, figures.ttft(), figures.tpot()
    return (
        pace.ttft_s if ttft is None else ttft.mean,
        pace.tpot_s if tpot is None else tpot.mean,
    )


def score(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """Rounds to the end: (N + E/2) / E(K) of them (the last one overshoots), each a scoring request
    and K drafted tokens, with K by the marginal rule on the measured survival. Each round is billed
    prompt, answer so far and draft as input, and one token of output; the first finds no more in
    the server's cache than a plain call does. The draft's own provider bills each draft as well."""
    if figures.verify_s is None and figures.round_law is None:
        return None
    tokens = ask.answer_tokens(figures)
    context = ask.context + tokens / 2
    best = best_round(figures, context, objective)
    rounds = max(1.0, tokens / best.tokens + 0.5)
    seconds = rounds * best.seconds
    first = figures.first_draft(ask.context)
    if first is not None:
        seconds += first.mean
    lost = rounds * best.lost
    if figures.usd_in is None or figures.usd_out is None:
        return Offer(Forecast(seconds), best.k, lost=lost)
    dollars = best.prompts * ask.context * (figures.usd_prompt or 0.0)
    dollars += (rounds - 1) * best.prompts * context * (figures.usd_round_prompt or 0.0)
    dollars += rounds * (best.k * figures.usd_in + best.prompts * figures.usd_out)
    dollars += (figures.usd_draft_in or 0.0) * ask.context + rounds * best.k * drafted_usd(figures)
    dollars += (rounds - 1) * draft_asked_usd(figures, context)
    return Offer(Forecast(seconds, dollars), best.k, lost=lost)


def drafted_usd(figures: Snapshot) -> float:
    """Dollars that a drafted token costs at the draft's own provider. An unknown price can't be
    weighed, as everywhere."""
    return figures.usd_draft_out or 0.0


def draft_asked_usd(figures: Snapshot, context: float) -> float:
    """The same of a further draft after ``context`` tokens, before any is drafted."""
    return (figures.usd_draft_again or 0.0) * context


@dataclass(frozen=True, slots=True)
class Round:
    """A scoring round at its best K: what it takes and what it commits."""

    k: int
    seconds: float
    tokens: float
    j: float
    """Seconds and dollars together, in seconds."""
    prompts: float = 1.0
    """Whole prompts billed, and output tokens."""
    lost: float = 0.0
    """Tokens that the others at the target and the drafter lose by it."""


def best_round(
    figures: Snapshot,
    context: float,
    objective: Objective,
    *,
    limit: int | None = None,
    own: Acceptance | None = None,
    timed: float = 1.0,
    draft_s: float | None = None,
) -> Round:
    """The round with the least J per token. What a request has seen for itself: ``own``
    acceptance, ``draft_s``, and ``timed``, its rounds' seconds as a factor on the figures'.

    Token k+1 is worth drafting iff S(k+1)·J > Δseconds + λ·Δdollars, J being that per token of the
    k before it (Dinkelbach's rule for a ratio; S only falls, so the first token that is not worth
    it ends the search). Δseconds: drafting it, what scoring takes longer for it, and what is drawn
    for it where the rules ask the target for tokens. With others there, J is the round's per token
    that it brings all of them, and S(k+1) what is left of it after they lost theirs (``crowd``).
    """
    most = objective.max_num_speculative_tokens if limit is None else limit
    if draft_s is None:
        draft_s = figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S
    base, per_token = round_seconds(figures, context)
    base, each = base * timed, draft_s + per_token * timed
    asked = objective.weigh(figures.usd_round_prompt) * context + objective.weigh(figures.usd_out)
    dollars_each = asked if figures.prompt_per_token else objective.weigh(figures.usd_in)
    dollars_each += objective.weigh(drafted_usd(figures))
    drawing = 0.0
    if figures.draws is not None and figures.draw is not None:
        drawing = figures.draws.mean * figures.draw.mean
    if own is None:
        found = reach(figures.acceptance)
    else:
        found = Reach(rates(figures.acceptance, own, strength=OWN_STRENGTH))
    survival = found.upto(min(most, _AHEAD))
    taken = toll_of(figures, context)
    per_draft = taken.per_draft
    asked += objective.weigh(draft_asked_usd(figures, context))
    seconds, j, tokens, k = base, base + asked, 1.0, 0
    net = max(1.0 - taken.per_round, 0.0)
    marginal = each + dollars_each
    while k < most:
        if k == len(survival):
            survival = found.upto(min(most, 2 * k))
        s = survival[k]
        if drawing:
            drawn = drawing * (survival[k - 1] if k else 1.0)
            marginal = each + drawn + dollars_each
            seconds += drawn
        if k and (s - per_draft) * j <= marginal * net:
            seconds -= drawn if drawing else 0.0
            break
        j, tokens, k = j + marginal, tokens + s, k + 1
        net = max(tokens - taken.round(k), 0.0) if per_draft or taken.per_round else tokens
    seconds += k * each
    prompts = 1.0 + k if figures.prompt_per_token else 1.0
    return Round(k, seconds, tokens, j, prompts, taken.round(k))


def round_seconds(figures: Snapshot, context: float) -> tuple[float, float]:
    """(seconds of a scoring request without a draft, more for each drafted token)."""
    law, waits = figures.round_law, figures.crowd.waits_s
    if law is None:
        return (figures.verify_s or 0.0) + waits, 0.0
    factor = law.factor.mean
    nothing = max(law.base + law.per_x * context, law.least)
    return nothing * factor + waits, law.per_y * factor

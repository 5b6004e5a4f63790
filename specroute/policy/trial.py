"""What trying a plan out may lose against plain: a trial that fails is a few rounds, then plain.

Knows the worst that can come of a trial, so that the account can bound it. Doesn't know whether one
is worth it. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace

from specroute.candidates import Candidate
from specroute.measure import Acceptance, Snapshot
from specroute.policy.account import EARLY
from specroute.policy.base import Ask
from specroute.policy.forecast import plain_pace, round_seconds
from specroute.policy.forecasts import FORECASTS
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import UNTRIED_DRAFT_S, Offer
from specroute.types import Method

BY_ACCEPTANCE = (Method.SCORE, Method.PREFIX, Method.CASCADE, Method.JUDGE, Method.RACE)
"""Methods that are forecast by how far drafts get."""

ROUNDS = 3
"""Rounds that a trial is judged after, at most; it goes on while they win."""
MODEST = 4
"""A trial of more than one round may lose no more than one part in so many of what may be lost."""
KS = (2, 16)
"""The smallest and the largest K of a trial."""
FRESH = 48.0
"""Judged tokens of its own below which a class is new: what is promised is other classes' word."""
FIRST_K = 4
"""The largest K of a new class's first rounds,"""
FIRST = 0.03
"""which may lose this share of a plain request, where all classes together have won as much."""
_UNTOUCHED = 0.8
"""Of what was paid into an account that has lost nothing, what is there at least: forecasts and
answers differ."""
_NOTHING = Acceptance((0.0,) * 4, (1e3,) * 4)


def fresh(candidate: Candidate, seen: Snapshot) -> bool:
    """Whether too little of a plan was ever seen in the request's own class, and others that were
    new have not turned out to be like those before them."""
    return candidate.method in BY_ACCEPTANCE and seen.of_its_own < FRESH and not seen.even


def may_lose_first(ask: Ask, plain_j: float, share: float) -> float:
    """J that a new class's rounds may lose: what its own account holds, of which ``share`` of all
    that was spent is paid in, or a little of what all classes together have won. Once it has lost
    something, half of what it holds."""
    own = ask.account
    if own.allowance < _UNTOUCHED * EARLY * share * own.spent:
        return own.allowance / 2
    return max(own.allowance, min(FIRST * plain_j, ask.together.allowance))


def trial_k(k: int, objective: Objective) -> int:
    """K of a trial's rounds, where ``k`` would be best: enough to learn from, and no more."""
    return min(max(k, KS[0]), KS[1], max(objective.max_num_speculative_tokens, 1))


def rounds_for(j: float, allowance: float) -> int:
    """How many rounds are tried, where one loses ``j`` at most of what may be lost: answers differ,
    and with more rounds more is seen of this one."""
    return max(1, min(ROUNDS, int(allowance / (MODEST * j)) if j > 0 else ROUNDS))


def most_of_a_round(
    figures: Snapshot, ask: Ask, k: int, plain: Forecast, depth: int = 0
) -> Forecast:
    """What a round of K tokens, and those in flight with it, lose where nothing is accepted, so
    that it commits one token. The stream that follows takes its start as a plain call does, and its
    prompt."""
    base, each = round_seconds(figures, ask.context)
    _, tpot_s = plain_pace(figures)
    draft_s = figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S
    first = figures.first_draft(ask.context)
    token_s = tpot_s or plain.seconds / ask.answer_tokens(figures)
    seconds = base + k * (each + draft_s) - token_s
    if first is not None:
        seconds += first.mean
    if figures.usd_in is None or figures.usd_out is None:
        return Forecast(max(0.0, seconds))
    prompts = 1 + k if figures.prompt_per_token else 1
    asked = prompts * ((figures.usd_prompt or 0.0) * ask.context + figures.usd_out)
    dollars = max(depth, 1) * (asked + k * figures.usd_in) - figures.usd_out
    return Forecast(max(0.0, seconds), max(0.0, dollars))


def for_nothing(
    candidate: Candidate, figures: Snapshot, ask: Ask, objective: Objective
) -> Forecast:
    """What a plan without rounds takes where none of its draft is any good."""
    offer = FORECASTS[candidate.method](replace(figures, acceptance=_NOTHING), ask, objective)
    return Forecast(math.inf) if offer is None else offer.forecast


def of_request(offer: Offer, plain: Forecast) -> Forecast:
    """What a plan without rounds is expected to lose: it is carried through."""
    found, dollars = offer.forecast, None
    if found.dollars is not None and plain.dollars is not None:
        dollars = max(0.0, found.dollars - plain.dollars)
    return Forecast(max(0.0, found.seconds - plain.seconds), dollars)

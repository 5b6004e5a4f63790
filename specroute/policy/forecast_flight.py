"""What ``score`` is expected to take with rounds in flight, and how many of them pay.

A run is what is committed up to a rejection. Its first answer is there after drafting K tokens and
one scoring request of T seconds. Up to ``depth`` rounds are under way at a time, and the next one
is drafted once there is room: while all K of a round stand, answers come K·d apart, ``depth`` of
them in a row, and then there is a wait for what is left of K·d + T. The rejection throws away the
depth - 1 rounds that were built on it, each of them billed as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask
from specroute.policy.chance import Reach, rates, reach
from specroute.policy.forecast import (
    OWN_STRENGTH,
    Round,
    draft_asked_usd,
    drafted_usd,
    round_seconds,
    toll_of,
)
from specroute.policy.forecast import score as one_at_a_time
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import UNTRIED_DRAFT_S, Offer

DEPTHS = (2, 3, 4, 6)
KS = (2, 4, 8, 16, 32)
HORIZON = 48
"""Tokens of a run that are reckoned with one by one; those after them by their last rate."""
NEGLIGIBLE = 0.04
"""Chances of reaching a token from which on they are, too."""
LAST = 0.99
"""That rate at most."""
DEAR = 8.0
"""A further request that is billed at more than so many times what one takes never pays."""
NOTICED = 0.02
"""Tokens of the others', per token of the answer, that a deeper pipeline may cost more."""
GAIN = 0.98
"""A deeper pipeline has to bring this much: it loads the server more than is billed."""


@dataclass(frozen=True, slots=True)
class Flight:
    """``run``: K of a round, and what a whole run takes and commits."""

    depth: int
    run: Round


def rounds(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """One round at a time, or several in flight where that has the lesser J. Without prices what
    further requests cost can't be weighed, and where every drafted token is a prompt of its own
    they cost too much: then one at a time."""
    single = one_at_a_time(figures, ask, objective)
    if single is None or single.forecast.dollars is None or figures.prompt_per_token:
        return single
    tokens = ask.answer_tokens(figures)
    context = ask.context + tokens / 2
    base, _ = round_seconds(figures, context)
    if objective.weigh(figures.usd_round_prompt) * context > DEAR * base:
        return single
    found = best_flight(figures, context, objective)
    usd_in, usd_out = figures.usd_in, figures.usd_out
    if found is None or usd_in is None or usd_out is None:
        return single
    run = found.run
    runs = 1 + max(tokens - 1, 0.0) / run.tokens  # A rejection starts another one.
    asked = context * (figures.usd_round_prompt or 0.0) + run.k * usd_in + usd_out
    asked += draft_asked_usd(figures, context) + run.k * drafted_usd(figures)
    first = figures.first_draft(ask.context)
    seconds = runs * run.seconds + (0.0 if first is None else first.mean)
    forecast = Forecast(seconds, runs * run.prompts * asked)
    lost = runs * run.lost
    if objective.j(forecast) > GAIN * objective.j(single.forecast):
        return single
    if lost > single.lost + tokens * NOTICED:
        return single  # What a rejection throws away the others have waited for.
    return Offer(forecast, run.k, depth=found.depth, lost=lost)


def best_flight(
    figures: Snapshot,
    context: float,
    objective: Objective,
    *,
    depths: Sequence[int] = DEPTHS,
    limit: int | None = None,
    own: Acceptance | None = None,
    timed: float = 1.0,
    draft_s: float | None = None,
) -> Flight | None:
    """The depth and K with the least J per token; the rest as in :func:`forecast.best_round`."""
    most = objective.max_num_speculative_tokens if limit is None else limit
    if draft_s is None:
        draft_s = figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S
    base, per_token = round_seconds(figures, context)
    asked = objective.weigh(figures.usd_round_prompt) * context + objective.weigh(figures.usd_out)
    asked += objective.weigh(draft_asked_usd(figures, context))
    usd_in = objective.weigh(figures.usd_in) + objective.weigh(drafted_usd(figures))
    if own is None:
        found = reach(figures.acceptance)
    else:
        found = Reach(rates(figures.acceptance, own, strength=OWN_STRENGTH))
    survival = [1.0, *found.until(NEGLIGIBLE, HORIZON)]
    beyond = _beyond(survival, figures.pace.answer_tokens)
    tokens = sum(survival) + beyond
    best: tuple[float, int, int, float, float] | None = None
    for k in KS:
        if k > most:
            break
        took, drafting, each = (base + per_token * k) * timed, k * draft_s, asked + usd_in * k
        reached = survival[k::k]
        further = sum(reached) + beyond / k
        least = drafting + took + further * drafting
        if best is not None and least + (further + depths[0]) * each >= best[0]:
            continue  # Even without a wait.
        for depth in depths:
            wait = took - (depth - 1) * drafting
            drafts = wait <= 0
            seconds = least
            if not drafts:
                seconds += (sum(reached[depth - 1 :: depth]) + beyond / (k * depth)) * wait
            j = seconds + (further + depth) * each
            if best is None or j < best[0]:
                best = j, k, depth, seconds, further + depth
            if drafts:  # The drafter is as slow already: more in flight gain nothing.
                break
    if best is None:
        return None
    j, k, depth, seconds, prompts = best
    lost = prompts * toll_of(figures, context).round(k)
    return Flight(depth, Round(k, seconds, tokens, j, prompts, lost))


def _beyond(survival: list[float], answer: float | None) -> float:
    """Tokens of a run after those that are reckoned one by one, up to an answer's usual end: a
    geometric sum."""
    n = len(survival) - 1
    span = min(8, n)
    if not span or survival[-1] <= 0:
        return 0.0
    rate = min(math.pow(survival[-1] / survival[-1 - span], 1 / span), LAST)
    left = math.inf if answer is None else max(answer - n, 0.0)
    return survival[-1] * rate * (1 - math.pow(rate, left)) / (1 - rate)

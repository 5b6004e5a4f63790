"""What ``score`` is expected to take with rounds in flight, and how many of them pay.

A run is what is committed up to a rejection. Its first answer is there after drafting K tokens and
one scoring request of T seconds; while all K of a round stand, the next answer follows after
s = max(K·d, T / depth), since the rounds behind it are under way already. The rejection throws away
the depth - 1 rounds that were built on it, each of them billed as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask
from specroute.policy.chance import Drawn, rates
from specroute.policy.forecast import OWN_STRENGTH, Round, round_seconds
from specroute.policy.forecast import score as one_at_a_time
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import UNTRIED_DRAFT_S, Offer

DEPTHS = (2, 3, 4, 6)
KS = (2, 4, 8, 16, 32)
HORIZON = 96
"""Tokens of a run that are reckoned with."""
GAIN = 0.95
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
    found = best_flight(figures, context, objective)
    usd_in, usd_out = figures.usd_in, figures.usd_out
    if found is None or usd_in is None or usd_out is None:
        return single
    run = found.run
    runs = max(1.0, tokens / run.tokens)
    asked = context * (figures.usd_round_prompt or 0.0) + run.k * usd_in + usd_out
    first = figures.first_draft(ask.context)
    seconds = runs * run.seconds + (0.0 if first is None else first.mean)
    forecast = Forecast(seconds, runs * run.prompts * asked)
    if objective.j(forecast) > GAIN * objective.j(single.forecast):
        return single
    return Offer(forecast, run.k, depth=found.depth)


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
    usd_in = objective.weigh(figures.usd_in)
    z = figures.acceptance.z if isinstance(figures.acceptance, Drawn) else 0.0
    survival, reach = [1.0], 1.0
    for rate in islice(rates(figures.acceptance, own, z=z, strength=OWN_STRENGTH), HORIZON):
        reach *= rate
        survival.append(reach)
    tokens = sum(survival)
    best: Flight | None = None
    for k in KS:
        if k > most:
            break
        took = (base + per_token * k) * timed
        further = sum(survival[k::k])
        for depth in depths:
            seconds = k * draft_s + took + further * max(k * draft_s, took / depth)
            prompts = further + depth
            j = seconds + prompts * (asked + usd_in * k)
            if best is None or j < best.run.j:
                best = Flight(depth, Round(k, seconds, tokens, j, prompts))
    return best

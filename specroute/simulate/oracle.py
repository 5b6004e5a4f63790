"""The best fixed plan in hindsight: plain, or one drafter with one K, at one target, throughout,
one round at a time or so many in flight.

Knows everything about the world, and adapts to nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from specroute.candidates import Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.simulate.run import Outcome, plain_outcome, run
from specroute.simulate.scenario import VERIFY_PER_TOKEN_S, Drafter
from specroute.simulate.world import NOISE, Synthetic, World
from specroute.types import Method

KS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FLIGHT_KS = (2, 4, 8, 16)
DEPTHS = (2, 4)
"""What is tried of rounds in flight, for the drafter and target that are fastest one at a time."""


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """``k = 0`` is plain."""

    target: str | None
    """``None``: the requests' own."""
    drafter: str | None
    k: int
    depth: int = 1
    """Rounds in flight."""

    def __str__(self) -> str:
        at = "" if self.target is None else f" at {self.target}"
        flight = f" x{self.depth}" if self.depth > 1 else ""
        return f"plain{at}" if self.k == 0 else f"{self.drafter} K={self.k}{flight}{at}"


def fixed_plans(world: World) -> dict[FixedPlan, Outcome]:
    """What every fixed plan takes."""
    found = {}
    for n, target in enumerate(world.targets):
        name = target if n else None
        found[FixedPlan(name, None, 0)] = plain_outcome(world, target)
        for drafter in world.drafters:
            for k in KS:
                plan = FixedPlan(name, drafter.name, k)
                if isinstance(world, Synthetic):
                    found[plan] = fixed(world, drafter, target, k)
                else:
                    found[plan] = run(world, _Always(plan), measured=False)
    rounds = {plan: outcome for plan, outcome in found.items() if plan.k}
    if rounds:
        fastest, _ = best(rounds, 0, len(next(iter(rounds.values())).seconds))
        for k in FLIGHT_KS:
            for depth in DEPTHS:
                plan = replace(fastest, k=k, depth=depth)
                found[plan] = run(world, _Always(plan), measured=False)
    return found


class _Always:
    """One fixed plan, as a policy."""

    eager, lossy = True, None

    def __init__(self, plan: FixedPlan) -> None:
        self._plan = Plan(
            Method.SCORE, plan.drafter, plan.k, "fixed", target=plan.target, depth=plan.depth
        )

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        return self._plan

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        return self._plan.k


def fixed(world: Synthetic, drafter: Drafter, target: str, k: int) -> Outcome:
    """``score`` with the same K in every round of every request: what a run of it would give, in
    a fraction of the time."""
    usd_in, usd_out, usd_cached = world.prices(target)
    seconds, dollars, total = [], [], 0
    for i, context in enumerate(world.contexts):
        tokens = world.tokens(i)
        runs = world.runs(i, drafter, target)
        at = n = before = 0
        whole = tokens - k - 1  # From here on the answer's end cuts a round's draft.
        while at <= whole:
            before += at
            run = runs[at]
            at += (run if run < k else k) + 1
            n += 1
        drafted = n * k
        while at < tokens:
            before += at
            cut = tokens - at - 1
            at += min(runs[at], cut) + 1
            drafted += cut
            n += 1
        first = world.first_factor(i)
        waits = world.sums[first + min(n, NOISE)] - world.sums[first]
        tpot = world.tpot(i, target)
        seconds.append(
            waits * world.r(i, target)
            + n * tpot
            + drafted * (drafter.token_s + VERIFY_PER_TOKEN_S)
            + context * drafter.read_s
        )
        prompt = n * context + before
        cached = prompt - context - (n - 1) if usd_cached is not None else 0
        paid = (prompt - cached + drafted) * usd_in + n * usd_out
        dollars.append(paid + cached * (usd_cached or 0.0))
        total += n
    return Outcome(tuple(seconds), tuple(dollars), total)


def best(
    plans: dict[FixedPlan, Outcome], start: int, end: int, *, dollars: bool = False
) -> tuple[FixedPlan, float]:
    """(the best fixed plan for requests start..end, its mean seconds or dollars)."""

    def mean(outcome: Outcome) -> float:
        values = outcome.dollars if dollars else outcome.seconds
        return sum(values[start:end]) / (end - start)

    plan = min(plans, key=lambda each: mean(plans[each]))
    return plan, mean(plans[plan])

"""The best fixed plan in hindsight: plain, or one drafter with one K, at one target, throughout.

Knows everything about the world, and adapts to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from specroute.simulate.run import Outcome, plain_outcome
from specroute.simulate.scenario import DRAFTERS, FIRST, VERIFY_PER_TOKEN_S, Drafter, Target
from specroute.simulate.world import NOISE, World

KS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """``k = 0`` is plain."""

    target: str
    drafter: str | None
    k: int

    def __str__(self) -> str:
        at = "" if self.target == FIRST.name else f" at {self.target}"
        return f"plain{at}" if self.k == 0 else f"{self.drafter} K={self.k}{at}"


def fixed_plans(world: World) -> dict[FixedPlan, Outcome]:
    """What every fixed plan takes."""
    found = {}
    for target in world.scenario.targets:
        found[FixedPlan(target.name, None, 0)] = plain_outcome(world, target)
        for drafter in DRAFTERS:
            for k in KS:
                found[FixedPlan(target.name, drafter.name, k)] = fixed(world, drafter, target, k)
    return found


def fixed(world: World, drafter: Drafter, target: Target, k: int) -> Outcome:
    """``score`` with the same K in every round of every request."""
    tokens = world.scenario.tokens
    usd_in, usd_out, usd_cached = world.prices(target)
    seconds, dollars, total = [], [], 0
    for i, context in enumerate(world.contexts):
        runs = world.runs(i, drafter, target)
        at = n = before = 0
        while at < tokens:
            before += at
            run = runs[at]
            at += (run if run < k else k) + 1
            n += 1
        # Only the last round may have been cut by the answer's end.
        drafted = n * k - max(0, _cut(runs, tokens, k))
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


def _cut(runs: list[int], tokens: int, k: int) -> int:
    """Tokens that the last round does not draft, because the answer ends before them."""
    at = last = 0
    while at < tokens:
        last = at
        at += min(runs[at], k) + 1
    return k - min(k, tokens - last - 1)


def best(
    plans: dict[FixedPlan, Outcome], start: int, end: int, *, dollars: bool = False
) -> tuple[FixedPlan, float]:
    """(the best fixed plan for requests start..end, its mean seconds or dollars)."""

    def mean(outcome: Outcome) -> float:
        values = outcome.dollars if dollars else outcome.seconds
        return sum(values[start:end]) / (end - start)

    plan = min(plans, key=lambda each: mean(plans[each]))
    return plan, mean(plans[plan])

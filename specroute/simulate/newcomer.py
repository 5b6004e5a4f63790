"""A traffic class that is new: what its first requests take after a long one of other acceptance.

Knows which scenarios, and what must hold. Learns nothing from how they turn out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from specroute.policy.base import Policy
from specroute.simulate.judge import Verdict
from specroute.simulate.run import plain_outcome, run
from specroute.simulate.scenario import Scenario
from specroute.simulate.world import Synthetic

OLD, NEW = 40, 8
"""Requests of the class that is known, and of the one that follows it."""
CHANGES = ((0.95, 0.05), (0.95, 0.5), (0.3, 0.95), (0.8, 0.8))
"""(α of the known class, α of the new one)."""
PLACES = ((0.001, 0.04), (0.01, 0.04), (0.03, 0.02), (0.1, 0.04), (0.4, 0.1))
"""(R, TPOT)."""
FIRST_MOST, MEAN_MOST = 1.05, 1.02


@dataclass(frozen=True, slots=True)
class First:
    """Seconds against plain, of a new class's first request and of its first eight."""

    request: float
    eight: float


def scenarios(before: float, after: float) -> Iterator[Scenario]:
    """Both shapes of survival, near and far targets, with and without shadow evidence."""
    n = 0
    for shape in ("geometric", "heavy"):
        for r, tpot in PLACES:
            for shadow in (True, False):
                yield Scenario(
                    before,
                    r,
                    tpot,
                    shape,
                    shadow=shadow,
                    seed=n,
                    requests=OLD + NEW,
                    tokens=(100, 300)[n // 2 % 2],
                    new_at=OLD,
                    new_alpha=after,
                )
                n += 1


def first_requests(scenario: Scenario, policy: Policy) -> First:
    """One scenario, under one policy."""
    world = Synthetic(scenario)
    took, plain = run(world, policy).seconds, plain_outcome(world, world.targets[0]).seconds
    new = scenario.new_at
    return First(took[new] / plain[new], sum(took[new:]) / sum(plain[new:]))


def newcomers(policy: Callable[[], Policy]) -> list[Verdict]:
    """A line for each change of acceptance."""
    found = []
    for before, after in CHANGES:
        seen = [first_requests(each, policy()) for each in scenarios(before, after)]
        first, eight = max(s.request for s in seen), max(s.eight for s in seen)
        found.append(
            Verdict(
                first <= FIRST_MOST and eight <= MEAN_MOST,
                f"latency: a new class (α = {after:g}) after a known one ({before:g}): its first "
                f"request at most {FIRST_MOST - 1:.0%} slower than plain, its first eight "
                f"{MEAN_MOST - 1:.0%}",
                f"{first:.3f} and {eight:.3f} at worst of {len(seen)}, "
                f"{fmean(s.request for s in seen):.3f} and {fmean(s.eight for s in seen):.3f} in "
                "the mean",
            )
        )
    return found

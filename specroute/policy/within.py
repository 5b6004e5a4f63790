"""The best settings of a method that keep every limit of a request and its policy.

Knows the limits, and that dollars (or seconds) may be weighed more where the best settings break
one. Chooses nothing: ``adaptive`` does. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specroute.candidates import Candidate
from specroute.measure import Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecasts import FORECASTS
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer

HARD = ("the deadline", "the most it may cost")
"""Limits that no trial may break either, whatever it may turn out to be."""
_BY_FAR = 1.5
"""A plan that exceeds a limit by more than this isn't looked at again with drawn figures."""
_WEIGHTS = (1000.0, 30.0, 6.0, 2.0)
"""Factors on λ that are tried where the best settings would cost too much,"""
_LIGHTER = (0.001, 0.03, 0.15, 0.5)
"""or take too long."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A plan that keeps no limit: which, and by how many times it is exceeded at least."""

    limit: str
    by: float

    def __str__(self) -> str:
        return self.limit


def within(
    candidate: Candidate, seen: Snapshot, ask: Ask, plain: Forecast, objective: Objective
) -> tuple[Offer, Objective] | Broken | None:
    """The best offer that keeps every limit and the objective whose K it has; the limit that
    all would break; ``None`` where the figures don't suffice."""
    offer = FORECASTS[candidate.method](seen, ask, objective)
    if offer is None:
        return None
    broken = _breaks(offer.forecast, plain, ask, objective)
    if broken is None:
        return offer, objective
    if broken in HARD or offer.forecast.dollars is None:
        return Broken(broken, 1.0)
    # The limit's own side alone, then what lies between: few plans get past the first.
    found: tuple[Offer, Objective] | None = None
    for weight in _WEIGHTS if broken.startswith("max_cost") else _LIGHTER:
        usd = objective.usd_per_second / weight
        weighed = replace(objective, usd_per_second=usd)
        offer = FORECASTS[candidate.method](seen, ask, weighed)
        if offer is None or _breaks(offer.forecast, plain, ask, objective) is not None:
            break
        found = offer, weighed
    if found is not None:
        return found
    by = objective.excess(offer.forecast, plain) if offer is not None else 1.0
    return Broken(broken, by)


def _breaks(forecast: Forecast, plain: Forecast, ask: Ask, objective: Objective) -> str | None:
    """The limit that a plan would break, in a few words."""
    if ask.seconds is not None and forecast.seconds > ask.seconds >= plain.seconds:
        return HARD[0]
    if ask.dollars is not None and (forecast.dollars is None or forecast.dollars > ask.dollars):
        return HARD[1]
    if objective.max_cost_ratio and forecast.dollars is not None:
        most = plain.dollars
        if most is not None and ask.account.dollars < 0 and forecast.dollars > most:
            return "max_cost_ratio, which requests before it have used up"
    return objective.broken(forecast, plain)


def hopeless(broken: Broken, seen: Snapshot) -> bool:
    """Whether no draw would bring a plan within its limit: one that is exceeded by far, and not
    for want of knowing what the server caches."""
    return broken.by > _BY_FAR and not unpriced(seen)


def unpriced(seen: Snapshot) -> bool:
    """Whether nothing is known yet of what the server's cache takes off a round's price."""
    return seen.round_cached is None and seen.usd_cached is not None

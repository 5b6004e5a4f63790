"""Which of several interchangeable targets a request goes to, by what plain calls to them take.

The first one is the user's preference: it is left only for one that wins by ``min_speedup``. A
target whose pace isn't known is asked as soon as the first one's is, and one that isn't chosen is
asked again for ``share`` of the requests, since its pace may have changed. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from specroute.policy.objective import Forecast, Objective


def choose_target(
    forecasts: Sequence[Forecast | None],
    objective: Objective,
    rng: random.Random,
    *,
    min_speedup: float = 1.02,
    share: float = 0.005,
) -> int:
    """The place of the target to ask. ``forecasts``: of a plain call to each, the preferred one's
    first; ``None``: not measured. Dollars count where they are known of all that are measured; a
    target that breaks a limit against the first one is not chosen."""
    first = forecasts[0]
    if first is None:
        return 0
    unknown = [n for n, forecast in enumerate(forecasts) if forecast is None]
    if unknown:
        return unknown[0]
    known = [forecast for forecast in forecasts if forecast is not None]
    if any(forecast.dollars is None for forecast in known):
        known = [Forecast(forecast.seconds) for forecast in known]
    able = [
        n for n, forecast in enumerate(known) if not n or objective.broken(forecast, first) is None
    ]
    if len(able) > 1 and rng.random() < share:
        return rng.choice(able)
    best = min(able, key=lambda n: objective.j(known[n]))
    return best if objective.j(known[best]) * min_speedup < objective.j(known[0]) else 0

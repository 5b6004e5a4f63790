"""At which temperature a draft is drawn, where the policy may tune it.

Exactness doesn't depend on it: the acceptance rules use the q that a token was really drawn from.
Acceptance does: a draft that is surer of itself than the target is agrees more often when it is
drawn hotter, one that is less sure when it is drawn colder. So it is found out, by Thompson
sampling over a few temperatures. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from specroute.measure import Acceptance

SHARES = (1.0, 1.4, 0.7)
"""Of the usual temperature: itself, and those that are tried."""
MARGIN = 0.02
"""By how much its rate has to be better: less brings less than it costs to find out."""
_PRIOR = 20.0
"""Judged tokens that the usual temperature's rate counts as for one that is not known."""


def choose_temperature(
    usual: float, seen: Iterable[tuple[float, Acceptance]], rng: random.Random
) -> float | None:
    """The temperature to draft at; ``None``: the usual one. ``seen``: acceptance by temperature,
    as in ``Snapshot.by_temperature``."""
    known = {round(temperature, 2): acceptance for temperature, acceptance in seen}
    asked = known.get(round(usual, 2), Acceptance())
    if asked.weight < _PRIOR:
        return None  # First what the others are compared with.
    base = asked.rate or 0.0
    best: float = base + MARGIN
    chosen: float | None = None
    for share in SHARES[1:]:
        temperature = round(usual * share, 2)
        found = known.get(temperature, Acceptance())
        passed, judged = sum(found.passed) / found.dispersion, found.weight / found.dispersion
        a, b = passed + base * _PRIOR, judged - passed + (1 - base) * _PRIOR
        drawn = rng.betavariate(max(a, 1e-3), max(b, 1e-3))
        if drawn > best:
            best, chosen = drawn, temperature
    return chosen

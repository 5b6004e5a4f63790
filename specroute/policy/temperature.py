"""At which temperature a draft is drawn, where the policy may tune it.

Exactness doesn't depend on it: the acceptance rules use the q that a token was really drawn from.
Acceptance does: a sharper draft agrees more often with a target that is sharp, and less with one
that isn't. So it is found out, by Thompson sampling over a few temperatures. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from specroute.measure import Acceptance

SHARES = (1.0, 0.7, 0.4)
"""Of the usual temperature: those that are tried."""
_PRIOR = 20.0
"""Judged tokens that the usual temperature's rate counts as for one that is not known."""
_HOPE = 0.8


def choose_temperature(
    usual: float, seen: Iterable[tuple[float, Acceptance]], rng: random.Random
) -> float | None:
    """The temperature to draft at; ``None``: the usual one. ``seen``: acceptance by temperature,
    as in ``Snapshot.by_temperature``."""
    known = {round(temperature, 2): acceptance for temperature, acceptance in seen}
    asked = known.get(round(usual, 2), Acceptance())
    base = asked.rate if asked.rate is not None else _HOPE
    best, chosen = -1.0, usual
    for share in SHARES:
        temperature = round(usual * share, 2)
        found = known.get(temperature, Acceptance())
        passed, judged = sum(found.passed) / found.dispersion, found.weight / found.dispersion
        a, b = passed + base * _PRIOR, judged - passed + (1 - base) * _PRIOR
        drawn = rng.betavariate(max(a, 1e-3), max(b, 1e-3))
        if drawn > best:
            best, chosen = drawn, temperature
    return None if chosen == round(usual, 2) else chosen

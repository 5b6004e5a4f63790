"""The scenarios that policies are judged by: few that cover much, or every one there is.

Knows which; nothing of how they turn out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from specroute.simulate.scenario import (
    ALPHAS,
    CACHED,
    DRIFTS,
    OUT_IN,
    ROUND_TRIPS_S,
    SHAPES,
    TPOTS_S,
    Scenario,
)

MOST = 240


def grid(per_pair: int = 2, seed: int = 0) -> list[Scenario]:
    """Every pair of α, R and TPOT (each pair of α and R with ``per_pair`` values of TPOT), and the
    corners. The other properties go round at strides of their own. At most ``MOST``. ``seed``:
    other luck in the same scenarios."""
    cells: list[Scenario] = []
    for a, alpha in enumerate(ALPHAS):
        for r, round_trip in enumerate(ROUND_TRIPS_S):
            for n in range(per_pair):
                # n goes half way round, so that two values already cover all pairs.
                tpot = TPOTS_S[(a + r + 2 * n + n // 2) % len(TPOTS_S)]
                cells.append(_cell(len(cells), alpha, round_trip, tpot))
    for alpha, round_trip, tpot in itertools.product(*(_ends(v) for v in AXES)):
        cells.append(_cell(len(cells), alpha, round_trip, tpot))
    return [replace(cell, seed=cell.seed + seed * 1000) for cell in cells[:MOST]]


def full() -> Iterator[Scenario]:
    """Every combination, without end in sight: for a machine of its own."""
    numbers = itertools.count()
    for alpha, shape, r, tpot, out_in, cached, drift, steps, two, shadow in itertools.product(
        ALPHAS,
        SHAPES,
        ROUND_TRIPS_S,
        TPOTS_S,
        OUT_IN,
        CACHED,
        DRIFTS,
        ("r", "alpha"),
        (False, True),
        (True, False),
    ):
        if steps == "alpha" and drift not in ("step", "slow"):
            continue
        yield Scenario(
            alpha, r, tpot, shape, out_in, cached, drift, steps, two, shadow, next(numbers)
        )


AXES: tuple[tuple[float, ...], ...] = (ALPHAS, ROUND_TRIPS_S, TPOTS_S)


def _ends(values: tuple[float, ...]) -> tuple[float, float]:
    return values[0], values[-1]


def _cell(n: int, alpha: float, r: float, tpot: float) -> Scenario:
    return Scenario(
        alpha,
        r,
        tpot,
        shape=SHAPES[(n // 2 + n // 7) % 2],
        out_in=OUT_IN[(n + n // 5) % 3],
        cached=CACHED[(n + n // 3) % 4],
        drift=DRIFTS[(n * 3 + n // 4) % 4],
        steps=("r", "alpha")[n // 8 % 2],
        interchangeable=n % 5 == 2,
        shadow=n % 6 != 4,
        seed=n,
    )

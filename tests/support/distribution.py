"""Is a sampler's output distributed as p? Total variation against plain sampling's own.

Knows counts and distributions only. A sample of size n from p itself lies at some total variation
from p; :func:`tv_quantile` gives the level that plain sampling stays under with probability
``q``, at the same size. A lossless sampler stays under it; a biased one doesn't, once n is large.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)


def total_variation(counts: Mapping[K, int], p: Mapping[K, float]) -> float:
    """½ Σ |counts/n - p|, over every key of either."""
    n = sum(counts.values())
    return 0.5 * sum(abs(counts.get(k, 0) / n - p.get(k, 0.0)) for k in counts.keys() | p.keys())


def tv_quantile(
    p: Mapping[K, float],
    n: int,
    q: float = 0.999,
    reps: int = 4000,
    rng: np.random.Generator | None = None,
) -> float:
    """The q-quantile of plain sampling's own total variation: n draws from p, ``reps`` times."""
    rng = rng or np.random.default_rng(0)
    probabilities = np.array(list(p.values()), dtype=np.float64)
    probabilities /= probabilities.sum()
    distances = np.concatenate(
        [
            0.5 * np.abs(rng.multinomial(n, probabilities, size=rows) / n - probabilities).sum(1)
            for rows in _blocks(reps, max(1, 2_000_000 // len(probabilities)))
        ]
    )
    return float(np.quantile(distances, q))


def pairs(
    first: Mapping[K, float], then: Mapping[K, Mapping[K, float]]
) -> dict[tuple[K, K], float]:
    """The distribution of two tokens in a row: ``first[a] * then[a][b]``."""
    return {(a, b): pa * pb for a, pa in first.items() if pa > 0 for b, pb in then[a].items()}


def second(first: Mapping[K, float], then: Mapping[K, Mapping[K, float]]) -> dict[K, float]:
    """The distribution of the second token alone."""
    out: dict[K, float] = {}
    for (_, b), probability in pairs(first, then).items():
        out[b] = out.get(b, 0.0) + probability
    return out


def _blocks(total: int, size: int) -> Iterable[int]:
    while total > 0:
        yield min(size, total)
        total -= size

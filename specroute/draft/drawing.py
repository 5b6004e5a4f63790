"""A token from logits, greedily or drawn, the q it was drawn from, and whether that is little.
Knows nothing else."""

from __future__ import annotations

from typing import Any


def draw(logits: Any, temperature: float, rng: Any) -> tuple[int, Any]:
    """(index, q): argmax and ``None`` at temperature 0; above it an index drawn by the numpy
    generator ``rng`` from q = softmax(logits / T), and that very q (float64, sums to 1)."""
    if temperature <= 0:
        return int(logits.argmax()), None
    import numpy as np

    q = logits.double().cpu().numpy()
    q = np.exp((q - q.max()) / temperature)
    q /= q.sum()
    ladder = np.cumsum(q)
    index = int(np.searchsorted(ladder, rng.random() * ladder[-1], side="right"))
    return min(index, len(q) - 1), q


def unsure(logits: Any, q: Any, index: int, least: float) -> bool:
    """Whether the draft gives ``index`` less probability than ``least``: in q if it was drawn, else
    at temperature 1. A draft may end *after* such a token, which is judged like any other."""
    if least <= 0:
        return False
    if q is not None:
        return bool(q[index] < least)
    logits = logits.float()
    return float((logits[index] - logits.logsumexp(0)).exp()) < least

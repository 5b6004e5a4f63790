"""What a section found, and how two contenders that took turns are compared."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Outcome:
    """``rows``: a table, column to text. ``held``: each bound, and whether it holds."""

    rows: list[dict[str, str]] = field(default_factory=list)
    held: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(self.held.values())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """Median seconds of one contender over the other's, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"


def ratio(over: Sequence[float], under: Sequence[float], reps: int = 2000) -> Ratio:
    """``median(over) / median(under)``; turn i of both is drawn together."""
    rng = random.Random(0)
    pairs = list(zip(over, under, strict=True))

    def of(drawn: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn)

    ratios = sorted(of(rng.choices(pairs, k=len(pairs))) for _ in range(reps))
    return Ratio(of(pairs), ratios[int(0.025 * reps)], ratios[int(0.975 * reps)])

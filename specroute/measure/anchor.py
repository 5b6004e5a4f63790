"""What plain calls tell of a scoring request: both pay the same R (round trip, queue, prefill).

While no rounds are made their law stands still, but the plain time to the first token is seen all
the time: what it has moved since, the law's fixed part has moved as well. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from specroute.measure.estimate import Estimate, Law, Z

ENOUGH = 3
"""Plain calls after a step of the law that tell whether they have made it, too."""
DOUBT = 0.25
"""The share of a shift that is not sure to be R's."""


class Anchor:
    """The plain time to the first token that goes with a law as it was last timed."""

    __slots__ = ("_at", "_pending", "reference")

    def __init__(self) -> None:
        self.reference: float | None = None
        self._pending = 0.0
        """A step of the law that plain calls have not been asked about yet,"""
        self._at = 0
        """and how many plain calls there had been."""

    def timed(self, first: float, calls: int, step: float, gain: float) -> None:
        """A round was timed. ``first``: plain seconds to the first token, now; ``calls``: plain
        calls so far; ``step``: by how much the law has just jumped; ``gain``: how much of the law
        is this round's doing."""
        if self.reference is None:
            self.reference = first
        elif step:
            self._pending, self._at = self._pending + step, calls
        elif not self._pending:
            self.reference += gain * (first - self.reference)

    def shift(self, first: Estimate, calls: int) -> float:
        """By how many seconds plain calls have moved since the law was timed; 0 within what is
        uncertain."""
        if self.reference is None:
            return 0.0
        if self._pending:
            if calls - self._at < ENOUGH:
                return 0.0  # The law knows; plain calls don't say yet whether it was R.
            moved = self.reference + self._pending
            explained = abs(first.mean - moved) < abs(first.mean - self.reference)
            self.reference, self._pending = moved if explained else first.mean, 0.0
        shift = first.mean - self.reference
        return shift if abs(shift) > (first.high - first.low) / 2 else 0.0


def shifted(law: Law, shift: float) -> Law:
    """``law`` with its fixed part moved, and as much less sure."""
    if not shift:
        return law
    c00, *rest = law.covariance
    variance = c00 + (DOUBT * shift / Z) ** 2
    c01, c02, c11, c12, c22 = rest
    return replace(law, base=law.base + shift, covariance=(variance, c01, c02, c11, c12, c22))

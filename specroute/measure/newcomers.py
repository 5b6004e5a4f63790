"""Do classes that are new turn out to be like those that lend to them?

Each is said to be like them or harder, once, and the verdicts fade with later ones. Pure; knows no
class by name.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH, LEAST_SAID, SOME = 12.0, 6.0, 2.0
"""Judged tokens of a new class that say at once whether it is like the others; that do so when an
answer ends; and that do so then if they say that it is harder."""
HARDER = 2.0
"""Times the hazard that others promise (``hardness``) from which a new class counts as harder."""
FADES = 0.9
"""What a verdict keeps of its weight with each later one."""
IN_A_ROW = 2.7
"""New classes that were like the others, so faded, from which the next is taken to be, too,"""
ODD = 0.1
"""as long as those that were harder are no more than this share of them."""


class Newcomers:
    """The verdicts on the classes under one."""

    __slots__ = ("_alike", "_harder")

    def __init__(self) -> None:
        self._alike = self._harder = 0.0

    def tell(self, hardness: float, weight: float) -> bool:
        """``hardness`` of a new class against what it was lent, seen on ``weight`` judged tokens:
        whether that was enough for a verdict."""
        harder = hardness > HARDER
        if not harder and weight < LEAST_SAID:
            return False
        self._alike = FADES * self._alike + (not harder)
        self._harder = FADES * self._harder + harder
        return True

    @property
    def even(self) -> bool:
        """Whether those of late were like the others."""
        return self._alike >= IN_A_ROW and self._harder <= ODD * self._alike

    def dump(self) -> list[float]:
        return [self._alike, self._harder]

    def load(self, saved: Sequence[float] | None) -> None:
        """What :meth:`dump` gave; ``None``: that of a version before."""
        if saved is not None:
            self._alike, self._harder = map(float, saved)

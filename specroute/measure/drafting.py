"""How much longer a drafted token takes the more drafts a drafter has under way.

As ``crowd`` for a target: windows, and Little's law. Knows counts and one law, no clock.
"""

from __future__ import annotations

import math

from specroute.measure.estimate import Estimate
from specroute.measure.regression import Regression

WINDOW_S = 0.25
_LATE = 0.5
"""What the last window counts of what is so as of late."""
FEWEST = 8
"""Drafted tokens that make a window tell anything."""


class Drafting:
    """The drafts of one drafter."""

    __slots__ = ("_area", "_at", "_begun", "_drafted", "_now", "law", "width")

    def __init__(self) -> None:
        self.law = Regression((10.0, 1.0), (0.05, 1e-6), decay=0.98)
        """Seconds a drafted token takes its request, by the drafts under way."""
        self.width = 0.0
        """Drafts under way, as of late."""
        self._now = 0
        self._area = 0.0
        self._drafted = 0
        self._at = self._begun = 0.0

    def begin(self, now: float) -> None:
        """A draft begins."""
        if not self._now:
            # Drafts that come one at a time leave no time between them that tells anything.
            self._begun += now - self._at
            self._at = now
        self._move(now)
        self._now += 1

    def end(self, now: float, drafted: int) -> None:
        """It has brought so many tokens."""
        self._drafted += drafted
        self._move(now)
        self._now = max(0, self._now - 1)

    def _move(self, now: float) -> None:
        self._area += self._now * max(now - self._at, 0.0)
        self._at = now
        lasted = now - self._begun
        if lasted >= WINDOW_S and self._drafted >= FEWEST:
            width = self._area / lasted
            self.width += _LATE * (width - self.width)
            self.law.add(width, 0.0, max(self._area / self._drafted, 1e-9))
            self._area, self._drafted, self._begun = 0.0, 0, now

    def others(self, speculating: int) -> float:
        """Drafts beside one's own, as of late; ``speculating``: other requests that make rounds
        now, as far as is known: without any, and with no draft under way, there are none."""
        return min(self.width, float(max(speculating, self._now)))

    def slope(self) -> Estimate:
        """Seconds that each further draft adds to a token of all others."""
        law = self.law.law()
        if law is None:
            return Estimate(0.0, 0.0, 0.0)
        return Estimate.around(law.per_x, math.sqrt(max(law.covariance[3], 0.0)), law.weight)

"""How much longer a drafted token takes the more drafts a drafter has under way.

Each draft that ends tells the seconds that its tokens took and how many were under way beside it
meanwhile; those that end in a window are one observation. What counts is the draft's own time, not
how many ended by the time spent in the window: with few ends in each, that ratio is far too large
as often as it is too small, and the law would be steep. Knows counts and one law, no clock.
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

Mark = tuple[float, float]
"""When a draft began, and all drafts' time until then."""


class Drafting:
    """The drafts of one drafter."""

    __slots__ = ("_area", "_at", "_begun", "_drafted", "_now", "_spent", "_wide", "law", "width")

    def __init__(self) -> None:
        self.law = Regression((10.0, 1.0), (0.05, 1e-6), decay=0.98)
        """Seconds a drafted token takes its request, by the drafts under way."""
        self.width = 0.0
        """Drafts under way, as of late."""
        self._now = 0
        self._area = 0.0
        """Time of all drafts together, from the first one's begin on."""
        self._at = self._begun = 0.0
        self._spent = self._wide = 0.0
        self._drafted = 0
        """Of the drafts that ended in the window: their seconds, their seconds times how many were
        under way, their tokens."""

    def begin(self, now: float) -> Mark:
        """A draft begins; what to tell at its end."""
        self._move(now)
        self._now += 1
        return now, self._area

    def end(self, now: float, drafted: int, mark: Mark) -> None:
        """It has brought so many tokens."""
        self._move(now)
        self._now = max(0, self._now - 1)
        self._drafted += drafted
        self._spent += max(now - mark[0], 0.0)
        self._wide += max(self._area - mark[1], 0.0)  # Its own time is in it as well.
        if now - self._begun >= WINDOW_S and self._drafted >= FEWEST and self._spent > 0:
            self._close(now)

    def _move(self, now: float) -> None:
        self._area += self._now * max(now - self._at, 0.0)
        self._at = now

    def _close(self, now: float) -> None:
        spent, drafted = self._spent, self._drafted
        width = self._wide / spent
        self.width += _LATE * (width - self.width)
        self.law.add(width, 0.0, max(spent / drafted, 1e-9))
        self._spent, self._wide, self._drafted, self._begun = 0.0, 0.0, 0, now

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

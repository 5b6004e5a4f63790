"""Not asking again at once: a failure is remembered, and repeated until its time is up.

Knows one failure and a clock that is passed in; nothing of what failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from specroute.errors import DraftError


class Backoff:
    """After a failure, :meth:`check` raises it again for ``first`` seconds, then lets one through.

    Each further failure doubles the wait, up to ``most``; a success forgets.
    """

    def __init__(self, clock: Callable[[], float], first: float, most: float) -> None:
        self._clock, self._first, self._most = clock, first, most
        self._failures = 0
        self._until = -math.inf
        self._message = ""

    def check(self) -> None:
        """Raise :class:`DraftError` while the last failure is too fresh to try again."""
        left = self._until - self._clock()
        if left > 0:
            raise DraftError(f"{self._message} (not tried again for {left:.0f} s)")

    def failed(self, message: str) -> DraftError:
        """Remember a failure; returns the error to raise."""
        wait = min(self._first * 2**self._failures, self._most)
        self._failures = min(self._failures + 1, 60)
        self._until = self._clock() + wait
        self._message = message
        return DraftError(message)

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures, self._until = 0, -math.inf

"""A circuit breaker: closed, open, half open. A pure state machine; every time is passed in.

Knows outcomes. Deliberately knows no clock, no provider and no request, and never refuses one by
itself: whoever has nobody else to ask may ask all the same.
"""

from __future__ import annotations

from enum import StrEnum

FAILURES = 5
"""Failures in a row that open it."""
OPEN_S = (10.0, 300.0)
"""How long it stays open: the first time, and at most (it doubles with each failed probe)."""


class State(StrEnum):
    CLOSED = "closed"
    """Calls leave."""
    OPEN = "open"
    """Calls go elsewhere until :attr:`Breaker.due`."""
    HALF_OPEN = "half-open"
    """One call, the probe, is under way; others go elsewhere."""


class Breaker:
    """``failures`` in a row open it; after ``open_s`` one call probes; what comes of it decides."""

    __slots__ = ("_failures", "_in_row", "_longest", "_shortest", "_span", "due", "state")

    def __init__(self, failures: int = FAILURES, open_s: tuple[float, float] = OPEN_S) -> None:
        self._failures = failures
        self._shortest, self._longest = open_s
        self._span = self._shortest
        self._in_row = 0
        self.state = State.CLOSED
        self.due = 0.0
        """When it may be probed, while it is open."""

    def allows(self, now: float) -> bool:
        """Whether a call that has a choice should leave: it is closed, or due for its probe."""
        return self.state is State.CLOSED or (self.state is State.OPEN and now >= self.due)

    def enter(self, now: float) -> bool:
        """A call leaves; whether it is the probe."""
        if self.state is State.OPEN and now >= self.due:
            self.state = State.HALF_OPEN
            return True
        return False

    def answered(self) -> None:
        """The probe's answer has begun: calls leave again, but the next failure opens it."""
        if self.state is State.HALF_OPEN:
            self.state = State.CLOSED
            self._in_row = self._failures - 1

    def succeeded(self) -> None:
        """A call went well, whichever it was."""
        self.state = State.CLOSED
        self._in_row = 0
        self._span = self._shortest

    def failed(self, now: float) -> None:
        """A call failed through the provider's fault."""
        self._in_row += 1
        if self.state is State.HALF_OPEN or (
            self.state is State.CLOSED and self._in_row >= self._failures
        ):
            self.open(now)

    def open(self, now: float) -> None:
        """Send calls elsewhere for a while: twice as long as the last time, if none went well."""
        self.state = State.OPEN
        self.due = now + self._span
        self._span = min(2 * self._span, self._longest)

    def released(self, now: float) -> None:
        """The probe ended without saying anything (its caller went): the next call probes."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            self.due = now

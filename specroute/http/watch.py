"""The one timer of one request: it interrupts a wait whose deadline passed, and notices a reader
that holds a stream without reading it.

Knows asyncio and a :class:`~specroute.http.deadline.Deadline`; knows no HTTP. The timer is set
rarely and asks the state when it fires, so that a chunk costs two clock readings and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from specroute.errors import DeadlineExceeded
from specroute.http.deadline import Deadline


class Watch:
    """Guards the waits of one exchange: first for the headers, then for each piece of the body.

    ``with watch:`` around a wait, one at a time, ends it at the next limit and raises
    :class:`~specroute.errors.DeadlineExceeded`; a cancellation from elsewhere passes. ``content()``
    is called for every piece that carries content: only that resets the silence. ``handed()`` is
    called when something was handed to the reader: from then until the next wait, time is the
    reader's and counts towards ``idle`` only.
    """

    __slots__ = (
        "_already",
        "_at",
        "_expired",
        "_handed_at",
        "_held",
        "_loop",
        "_on_idle",
        "_silent_since",
        "_task",
        "_timer",
        "deadline",
        "provider",
    )

    def __init__(self, deadline: Deadline, provider: str) -> None:
        self.deadline = deadline
        self.provider = provider
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        """Who waits now."""
        self._already = 0
        """How often it had been cancelled before."""
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf
        self._expired: str | None = None
        self._silent_since: float | None = None
        self._handed_at: float | None = None
        self._held = 0.0
        self._on_idle: Callable[[], None] | None = None

    def idle(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the reader has held the stream for ``timeouts.idle``."""
        if self.deadline.timeouts.idle > 0:
            self._on_idle = callback

    @property
    def content_at(self) -> float | None:
        """When the last content came (moved on by what the reader held up since)."""
        return self._silent_since

    def content(self) -> float:
        """The piece just read carries content; returns the clock's reading."""
        now = self._silent_since = self.deadline.clock()
        return now

    def handed(self) -> None:
        """The reader now has the last piece and may take its time."""
        now = self.deadline.clock()
        self._handed_at = now
        if self._on_idle is not None:
            at = now + self.deadline.timeouts.idle
            if at < self._at:
                self._arm(at, now)

    def __enter__(self) -> None:
        # A context manager and no coroutine: a stream waits for every piece of its answer.
        now = self.deadline.clock()
        if self._handed_at is not None:
            held = now - self._handed_at
            self._handed_at = None
            if self._silent_since is None:
                self._held += held
            else:
                self._silent_since += held
        at, _ = self.deadline.limit(self._silent_since, self._held)
        if at < self._at:
            self._arm(at, now)
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._already = task.cancelling()
        self._task = task

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        task, self._task = self._task, None
        which = self._expired
        if which is None:
            return
        self._expired = None
        assert task is not None
        # The timer fired; the wait may have ended with something else just then.
        left = task.uncancel()
        if kind is not None and issubclass(kind, asyncio.CancelledError) and left <= self._already:
            raise self.exceeded(which) from None

    def stop(self) -> None:
        """The exchange is over; drop the timer."""
        self._on_idle = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = -inf

    def _arm(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        if at != inf:
            self._timer = self._loop.call_later(max(0.0, at - now), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._at = inf
        now = self.deadline.clock()
        if self._task is not None:
            at, which = self.deadline.limit(self._silent_since, self._held)
            if now + 0.0005 >= at:
                self._expired = which
                self._task.cancel()
            else:
                self._arm(at, now)
        elif self._handed_at is not None and self._on_idle is not None:
            at = self._handed_at + self.deadline.timeouts.idle
            if now + 0.0005 >= at:
                callback, self._on_idle = self._on_idle, None
                callback()
            else:
                self._arm(at, now)

    def passed(self) -> DeadlineExceeded:
        """The error for the limit that comes next, when someone else's timer saw it pass."""
        return self.exceeded(self.deadline.limit(self._silent_since, self._held)[1])

    def exceeded(self, which: str) -> DeadlineExceeded:
        """The error for a limit that passed."""
        seconds, said = self.deadline.seconds(which), self.deadline.configured(which)
        what = {
            "connect": "no connection",
            "first_token": "no first token",
            "stall": "no further content",
            "total": "no complete answer",
        }[which]
        return DeadlineExceeded(
            f"{self.provider}: {what} within {said:g} s (timeouts.{which})",
            provider=self.provider,
            which=which,
            seconds=seconds,
        )

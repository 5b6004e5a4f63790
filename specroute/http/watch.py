"""The one timer of one request: it interrupts a wait whose deadline passed, and notices a reader
that holds a stream without reading it.

Knows asyncio and a :class:`~specroute.http.deadline.Deadline`; knows no HTTP. The timer is set
rarely and asks the state when it fires, so that a chunk costs two clock readings and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

from specroute.errors import DeadlineExceeded
from specroute.http.deadline import Deadline

T = TypeVar("T")


class Watch:
    """Guards the waits of one exchange: first for the headers, then for each piece of the body.

    ``content()`` is called for every piece that carries content: only that resets the silence.
    ``handed()`` is called when something was handed to the reader: from then until the next wait,
    time is the reader's and counts towards ``idle`` only.
    """

    __slots__ = (
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

    async def guard(self, wait: Awaitable[T]) -> T:
        """Await, but no longer than the next limit.

        Raises :class:`~specroute.errors.DeadlineExceeded`. A cancellation from elsewhere passes.
        """
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
        task = asyncio.current_task()
        assert task is not None
        already = task.cancelling()
        self._task = task
        try:
            return await wait
        except asyncio.CancelledError:
            which, self._expired = self._expired, None
            if which is None or task.uncancel() > already:
                raise
            raise self.exceeded(which) from None
        finally:
            self._task = None
            if self._expired is not None:
                # The wait ended with something else just as the timer fired.
                self._expired = None
                task.uncancel()

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

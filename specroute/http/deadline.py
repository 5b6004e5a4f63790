"""One deadline for one request: four clocks that span every attempt made for it.

Pure arithmetic over a monotonic clock passed in; it raises nothing and waits for nothing itself
(``http.watch`` does). ``math.inf`` is "no limit".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

from specroute.config import Timeouts


class Deadline:
    """When each limit of :class:`~specroute.config.Timeouts` runs out, for one request.

    ``started`` is the clock's reading when the request began; retries, drafting and scoring rounds
    share it. Every duration is in seconds.
    """

    __slots__ = ("_around", "_own", "clock", "started", "timeouts")

    def __init__(self, timeouts: Timeouts, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeouts = timeouts
        self.clock = clock
        self.started = clock()
        self._around: Deadline | None = None
        self._own = timeouts

    def remaining(self, which: str) -> float:
        """Seconds left: of ``total`` and ``first_token`` since the start, of ``connect`` and
        ``stall`` for a wait that begins now. Never more than ``total`` leaves; may be negative."""
        now = self.clock()
        total = self.started + self.timeouts.total - now
        if which == "total":
            return total
        first = self.started + self.timeouts.first_token - now
        if which == "first_token":
            return min(first, total)
        if which == "connect":
            return min(self.timeouts.connect, first, total)
        if which == "stall":
            return min(self.timeouts.stall, total)
        raise ValueError(f"expected connect, first_token, stall or total, got {which!r}")

    def limit(self, silent_since: float | None, held: float = 0.0) -> tuple[float, str]:
        """The clock reading at which the next limit passes, and its name.

        ``silent_since``: when the last content came, ``None`` before the first. ``held``: seconds
        for which the reader, not the provider, kept things waiting before the first content.
        """
        total = self.started + self.timeouts.total
        if silent_since is None:
            first = self.started + self.timeouts.first_token + held
            return (first, "first_token") if first <= total else (total, "total")
        stall = silent_since + self.timeouts.stall
        return (stall, "stall") if stall <= total else (total, "total")

    def within(self, timeouts: Timeouts) -> Deadline:
        """A deadline for a target of its own ``timeouts``, from now on, never beyond this one."""
        inner = Deadline(
            replace(
                timeouts,
                connect=min(timeouts.connect, self.timeouts.connect),
                first_token=min(timeouts.first_token, max(self.remaining("first_token"), 0.0)),
                stall=min(timeouts.stall, self.timeouts.stall),
                total=min(timeouts.total, max(self.remaining("total"), 0.0)),
            ),
            self.clock,
        )
        inner._around, inner._own = self, timeouts
        return inner

    def part(self, share: float, most: float = inf) -> Deadline:
        """A deadline for something that may fail: from now on, at most ``share`` of what is left
        and at most ``most`` seconds, so that whatever takes its place still has its time: all of
        it has to be over before that one's first token is due, not only its own first."""
        first = min(max(share * self.remaining("first_token"), 0.0), most)
        total = min(max(share * self.remaining("total"), 0.0), first)
        stall = min(share * self.timeouts.stall, most)
        return Deadline(
            replace(self.timeouts, first_token=first, stall=stall, total=total), self.clock
        )

    def resumed(self) -> Deadline:
        """A deadline for a further call once content has come: its silence counts from now, as
        ``stall`` does between two pieces; ``total`` goes on."""
        total = max(self.remaining("total"), 0.0)
        timeouts = replace(self.timeouts, first_token=self.timeouts.stall, total=total)
        return Deadline(timeouts, self.clock)

    def seconds(self, which: str) -> float:
        """The length of one limit, as far as it reaches."""
        value: float = getattr(self.timeouts, which)
        return value

    def configured(self, which: str) -> float:
        """The same as whoever set it wrote it, for messages: of a limit that began before this
        deadline, all of it."""
        own: float = getattr(self._own, which)
        if self._around is not None and self.seconds(which) < own:
            return self._around.configured(which)
        return own


UNLIMITED = Timeouts(connect=inf, first_token=inf, stall=inf, total=inf, idle=0.0)
"""No limit at all; the start for callers that set only some."""

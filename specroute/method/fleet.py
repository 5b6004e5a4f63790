"""The lanes in flight beside a leading stream, and where the next one has to start to be of use.

A lane has to be there when the leading stream reaches its start: its first token takes a TTFT, and
the leading stream moves on meanwhile, faster where it can switch. Pure arithmetic on times and
positions that are passed in; knows no draft, and starts nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specroute.method.lane import Lane

MARGIN = 1.1
"""A lane's first token is expected this much later than measured: one that comes too late is lost,
one that comes early only waits."""


@dataclass(slots=True)
class Tempo:
    """Seconds to a lane's first token and between tokens: measured before, then in the request."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    _firsts: list[float] = field(default_factory=list)

    def began(self, seconds: float) -> None:
        """A stream's first token took so long."""
        self._firsts = [*self._firsts, seconds][-5:]
        self.ttft_s = sum(self._firsts) / len(self._firsts)

    def streamed(self, tokens: int, seconds: float) -> None:
        """So many tokens came one after the other in that time."""
        if tokens >= 4 and seconds > 0:
            self.tpot_s = seconds / tokens


@dataclass(slots=True)
class Fleet:
    """``most`` lanes at a time, ``spacing`` tokens apart."""

    most: int
    spacing: int
    tempo: Tempo
    lanes: list[Lane] = field(default_factory=list)
    """In the order of their starts."""
    failed: int = 0
    """Lanes that broke before they were of use."""

    def clear(self) -> None:
        """Begin to end them all."""
        for lane in self.lanes:
            lane.cancel()
        self.lanes = []

    def drop_broken(self) -> None:
        """Without those that broke."""
        self.failed += sum(lane.broken for lane in self.lanes)
        self.lanes = [lane for lane in self.lanes if not lane.broken]

    def next_start(self, lead: Lane, place: float, now: float, scale: float) -> float:
        """The least place for one more lane. ``place``: where the leading stream is; ``scale``:
        positions (ids or characters) a token."""
        after = self.lanes[-1].start if self.lanes else place
        spaced = after + self.spacing * scale
        if self.tempo.ttft_s is None:
            return spaced
        there = now + MARGIN * self.tempo.ttft_s + (self.tempo.tpot_s or 0.0)
        return max(spaced, self.reached(lead, place, now, there, scale))

    def reached(self, lead: Lane, place: float, now: float, then: float, scale: float) -> float:
        """Where the leading stream will be at ``then``, if it follows the draft all the way."""
        if not self.tempo.tpot_s:
            return place
        at = place + self._made(lead, now, then, scale)
        for lane in self.lanes:
            if at < lane.start:
                break
            at = max(at, lane.start + lane.waiting + self._made(lane, now, then, scale))
        return at

    def _made(self, lane: Lane, now: float, then: float, scale: float) -> float:
        """Positions that a stream writes between ``now`` and ``then``."""
        ready = now if lane.ready_at is not None else lane.started_at + (self.tempo.ttft_s or 0.0)
        return max(then - max(ready, now), 0.0) / (self.tempo.tpot_s or 1.0) * scale

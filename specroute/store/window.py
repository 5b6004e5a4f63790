"""What a limit counts and over which time; pure arithmetic on slots of time.

A limit's window is cut into slots. What a call takes is booked in the slot in which it leaves and
counts until that slot has left the window, so the sum over any window never exceeds the limit. A
minute has 60 slots of a second and one more, for the part of a slot at either end; a day is one
slot, from midnight to midnight UTC. Knows no store and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Window:
    """So many slots of ``slot_s`` seconds, the running one included; they begin at the epoch."""

    slot_s: int
    slots: int

    def slot(self, now: float) -> int:
        """The running slot at ``now`` (seconds since the epoch)."""
        return int(now // self.slot_s)

    def oldest(self, now: float) -> int:
        """The first slot that still counts."""
        return self.slot(now) - self.slots + 1


MINUTE = Window(1, 61)
DAY = Window(86_400, 1)
"""Days since 1970-01-01 begin at midnight UTC."""


@dataclass(frozen=True, slots=True)
class Want:
    """So much more of what ``key`` counts, of which ``window`` may hold ``limit``."""

    key: str
    amount: float
    limit: float
    window: Window


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now: the want that does not fit, what is used of its limit, and the wait for it."""

    want: Want
    used: float
    wait_s: float
    """Until enough will have left the window, if nobody else takes it; ``inf``: never."""


@dataclass(frozen=True, slots=True)
class Change:
    """A correction of what was booked in one slot."""

    key: str
    slot: int
    amount: float


def refusal(want: Want, booked: Mapping[int, float], now: float) -> Refusal | None:
    """Whether ``want`` does not fit beside what is ``booked`` (slot → amount); ``None``: it fits.

    Slots that have left the window may be among them. Amounts within a millionth of the limit
    count as within it: sums of reservations and their corrections carry rounding.
    """
    window = want.window
    oldest = window.oldest(now)
    counted = {slot: amount for slot, amount in booked.items() if slot >= oldest}
    used = max(sum(counted.values()), 0.0)
    room = want.limit * (1 + 1e-6)
    if used + want.amount <= room:
        return None
    if want.amount > room:
        return Refusal(want, used, inf)
    left = used
    for slot in sorted(counted):
        left -= counted[slot]
        if left + want.amount <= room:
            return Refusal(want, used, max((slot + window.slots) * window.slot_s - now, 0.0))
    return Refusal(want, used, window.slots * window.slot_s)

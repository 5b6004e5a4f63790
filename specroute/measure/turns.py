"""How long a turn of the caller's own event loop takes, where that is too long.

A stream's tokens that arrive while the loop is busy are read together in one turn; a scoring round
takes several turns, one after another, whatever has arrived. So where a thousand requests share a
loop, its turns are what rounds wait for and streams hardly do. Knows no loop and no clock: somebody
asks for a turn (``asks``) and says when it came (``came``). Seconds.
"""

from __future__ import annotations

USUAL_S = 0.25
"""A turn up to this long is none to speak of: a burst of a hundred requests is over with it;"""
PER_ROUND = 6
"""turns that a scoring round waits for, about: for its draft, the connection, the answer."""
KEEPS_S = 0.5
"""How long the last turn says anything of the present one, at least; long ones do for as long as
they took."""
LOST_S = 30.0
"""A turn that doesn't come within this time was asked of a loop that is closed."""


class Turns:
    """Of one loop."""

    __slots__ = ("_asked", "_at", "_took", "late_s", "number")

    def __init__(self) -> None:
        self._asked: float | None = None
        self._took = self._at = 0.0
        self.late_s = 0.0
        """Seconds by which a turn is too long, as of the last question."""
        self.number = 0
        """Of the turn that is under way, among those that were asked for."""

    def asks(self, now: float) -> bool:
        """Whether to say when the next turn comes; nobody has asked for it yet."""
        if self._asked is not None and now - self._asked > LOST_S:
            self._asked = None
        passed = 0.0 if self._asked is None else now - self._asked
        said = self._took if now - self._at <= max(KEEPS_S, self._took) else 0.0
        self.late_s = max(passed, said) - USUAL_S if max(passed, said) > USUAL_S else 0.0
        if self._asked is not None:
            return False
        self._asked = now
        return True

    def came(self, now: float) -> None:
        """The turn that was asked for is there."""
        if self._asked is not None:
            self._took, self._at, self._asked = now - self._asked, now, None
            self.number += 1

    def lasts(self, now: float) -> float:
        """Seconds since the first question of the turn that is under way."""
        return 0.0 if self._asked is None else now - self._asked

    def per_round(self) -> float:
        """Seconds that a scoring round takes longer for it."""
        return PER_ROUND * self.late_s

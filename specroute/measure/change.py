"""Whether acceptance has changed, and how much answers differ. Pure, no clock.

Knows surpluses of accepted tokens, answer by answer. Knows no tables and no classes.
"""

from __future__ import annotations

import math
from typing import Any


class Watch:
    """Whether acceptance has changed, and how much answers differ.

    One answer's rounds resemble each other, so an answer is one observation: its surplus of
    accepted tokens over what the rate had promised. How much answers scatter by that, against
    independent tokens, is the dispersion; Page's CUSUM over standardised surpluses tells a change.
    No fewer than three answers raise the alarm.
    """

    SLACK, ALARM, CLIP = 0.5, 6.0, 2.5
    MOST = 30.0
    """Dispersion beyond this isn't believed."""
    IDLE = 64
    """Rounds of other answers after which an answer is taken to be over."""
    __slots__ = (
        "_clock",
        "_down",
        "_falling",
        "_length",
        "_open",
        "_ratio",
        "_rising",
        "_up",
        "_weight",
    )

    def __init__(self) -> None:
        self._up = self._down = 0.0
        self._rising = self._falling = 0
        self._open: dict[object, list[float]] = {}
        """By answer: rounds, surplus, judged tokens, variance, when it was last seen."""
        self._clock = 0
        self._ratio, self._weight = 8.0, 4.0
        self._length = 2.0
        """Judged tokens of a usual round."""

    @property
    def dispersion(self) -> float:
        """At least 1; 2 before anything was seen."""
        return max(1.0, min(self.MOST, self._ratio / self._weight))

    def add(self, accepted: int, judged: int, rate: float, weight: float, answer: object) -> int:
        """One round, where ``rate`` is that of the rounds before and ``weight`` their judged
        tokens. 0, or, where an answer that is over raises the alarm, how many rounds came after
        the change. ``answer`` tells answers apart; ``None``: the round is an answer of its own."""
        self._clock += 1
        self._length += 0.05 * (judged - self._length)
        seen = self._open.setdefault(answer, [0.0, 0.0, 0.0, 0.0, 0.0])
        each = max(rate * (1 - rate), 0.01)
        seen[0] += 1
        seen[1] += accepted - rate * judged
        # By a usual round's length, not by this one's: the surplus over it has no bias then.
        seen[3] += each * max(self._length, 1.0)
        seen[4] = self._clock
        after = 0
        if answer is None:
            return self.over(None, weight)
        if len(self._open) > 1:
            idle = [a for a, s in self._open.items() if self._clock - s[4] > self.IDLE]
            for other in idle:
                after = self.over(other, weight) or after
        return after

    def over(self, answer: object, weight: float) -> int:
        """An answer has ended; as :meth:`add`."""
        found = self._open.pop(answer, None)
        if found is None or weight < 40:
            return 0
        rounds, surplus, _, variance, _ = found
        off = surplus * surplus / variance
        dispersion = self.dispersion
        self._ratio = self._ratio * 0.95 + min(off, 9 * dispersion)
        self._weight = self._weight * 0.95 + 1.0
        z = surplus / math.sqrt(variance * dispersion)
        z = max(-self.CLIP, min(self.CLIP, z))
        # The rate itself is only known so well.
        slack = self.SLACK + math.sqrt(rounds * max(self._length, 1.0) / weight)
        self._up = max(0.0, self._up + z - slack)
        self._down = max(0.0, self._down - z - slack)
        self._rising = self._rising + int(rounds) if self._up else 0
        self._falling = self._falling + int(rounds) if self._down else 0
        if max(self._up, self._down) < self.ALARM:
            return 0
        since = self._rising if self._up > self._down else self._falling
        self._up = self._down = 0.0
        self._rising = self._falling = 0
        return since

    def dump(self) -> list[float]:
        return [self._ratio, self._weight]

    def load(self, data: Any) -> None:
        self._ratio, self._weight = float(data[0]), float(data[1])

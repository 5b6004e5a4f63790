"""How many requests of a client have been seen to do the same at the same time, and win by it.

What one request was measured to take says little of what a hundred take that do so together: they
share the client's own event loop, its drafter and the target, and each of these has only so many
seconds a second. A request's times are taken at its caller, so whatever it waited for is in them:
where ``n`` were under way together and their answers came no later than plain ones would have, then
``n`` is proven, whatever it is that they share.

Knows counts, times and what a plain call would have taken; no target, no method and no policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

FEWEST = 4
"""Tokens of each of those who are under way, and a piece of each, that make a verdict: about one
round each."""
AT_ONCE = 0.1
"""Tokens that follow each other in less than this share of a plain token's time came together."""
LATER = 3
"""Times as much evidence that makes a verdict of having lost: an answer that begins in step with
others may begin slowly and win in the end."""
MANY = 6
"""Times as much that it stays undecided; then half of it is let go."""
SURE = 0.9
"""How much later than plain, over √pieces, is no bad luck any more: tokens a piece vary by about
half their mean, so the mean of n is off by more than this once in twenty times."""
FALLS = 0.25
"""Of those who lost together so many are taken to be proven."""
HALF_S = 300.0
"""Seconds after which half is left of what nobody has shown again: machines get other work."""

Due = Callable[[int, bool], "float | None"]
"""Seconds in which a plain call would bring so many tokens more, or its first ones; ``None``: not
known."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is done together now, and was proven."""

    others: int = 0
    """Requests that do so now."""
    proven: float = 1.0
    """As many have been seen to win by it together,"""
    lost: float = math.inf
    """and as many to lose; infinite: none were."""


NOBODY_ELSE = Room()


class Together:
    """Those who do one thing at one target."""

    __slots__ = (
        "_area",
        "_at",
        "_due",
        "_fell",
        "_lost",
        "_now",
        "_pieces",
        "_proven",
        "_shown",
        "_tokens",
        "_took",
        "_width",
    )

    def __init__(self) -> None:
        self._now = 0
        self._area = self._at = 0.0
        """Requests over time, up to then."""
        self._proven, self._shown = 1.0, 0.0
        self._lost, self._fell = math.inf, 0.0
        """How many were seen to win and to lose, and when."""
        self._pieces = self._tokens = self._took = self._due = self._width = 0.0
        """Of the evidence since the last verdict; ``_width``: the sum over pieces of how many were
        under way."""

    @property
    def busy(self) -> bool:
        """Somebody does."""
        return self._now > 0

    def room(self, now: float) -> Room:
        """For one more."""
        self._judge(now)
        return Room(self._now, self._faded(now), self._lost * self._aged(now, self._fell))

    def joins(
        self,
        clock: Callable[[], float],
        due: Due,
        answer: float = 1.0,
        waited: Callable[[], float] = float,
    ) -> Member:
        """One more does so. ``answer``: tokens that its answer may have; ``waited``: of its seconds
        those that its reader let it wait."""
        self._move(clock(), 1)
        return Member(self, clock, due, answer, waited)

    def ends(self, now: float) -> None:
        """One of them no longer does."""
        self._move(now, -1)

    def area(self, now: float) -> float:
        """Their number, added up over time."""
        self._move(now, 0)
        return self._area

    def _move(self, now: float, by: int) -> None:
        self._area += self._now * max(now - self._at, 0.0)
        self._at = now
        self._now += by

    def _faded(self, now: float) -> float:
        return max(1.0, self._proven / self._aged(now, self._shown))

    def _aged(self, now: float, since: float) -> float:
        """Doubles every ``HALF_S``."""
        return math.exp2(min(max(now - since, 0.0) / HALF_S, 100.0))

    def brought(
        self, now: float, tokens: int, took: float, due: float, width: float, more: bool = False
    ) -> None:
        """A piece of an answer, or ``more`` of one: its tokens, the seconds since the one before it
        and those in which plain would have brought them, and how many were under way meanwhile."""
        if not more:
            self._judge(now)
            self._pieces += 1
            self._width += width
        self._tokens += tokens
        self._took += took
        self._due += due

    def _judge(self, now: float) -> None:
        """What the evidence says, if there is enough."""
        most = max(self._now, 2)
        if self._pieces < most or self._tokens < FEWEST * most:
            return
        width, proven = self._width / self._pieces, self._faded(now)
        chance = 1 + SURE / math.sqrt(self._pieces)
        if self._took <= self._due:
            self._proven, self._shown = max(proven, width), now
            lost = self._lost * self._aged(now, self._fell)
            if max(lost / width, 1.0) * self._took * chance <= self._due:
                # As many as lost then would win now, served in turn: what it was is gone.
                self._lost = math.inf
        elif self._tokens >= LATER * FEWEST * most and self._took > self._due * chance:
            self._proven, self._shown = max(min(proven, FALLS * width), 1.0), now
            self._lost, self._fell = width, now
        else:
            if self._tokens >= MANY * FEWEST * most:
                self._keep(0.5)
            return
        self._keep(0.0)

    def _keep(self, share: float) -> None:
        self._pieces *= share
        self._tokens *= share
        self._took *= share
        self._due *= share
        self._width *= share


class Member:
    """One request among them, from its plan to its end or to where it goes on in plain.

    How it begins is paid once for the whole answer, however long: of its first piece's time the
    others bear as much as they are of the answer.
    """

    __slots__ = (
        "_among",
        "_answer",
        "_area",
        "_at",
        "_begins",
        "_clock",
        "_due",
        "_idle",
        "_start",
        "_waited",
        "then",
    )

    def __init__(
        self,
        among: Together,
        clock: Callable[[], float],
        due: Due,
        answer: float,
        waited: Callable[[], float],
    ) -> None:
        self._among: Together | None = among
        self._clock, self._due, self._waited = clock, due, waited
        self._answer = answer
        self._at, self._idle = clock(), waited()
        self._area = among.area(self._at)
        self._begins = True
        self.then: Callable[[], None] | None = None
        """Called when it no longer does so."""
        self._start = (0, 0.0, 0.0, 1.0)
        """Its first piece, and whether that is all there is: tokens, seconds, plain's, and how many
        were under way."""

    def brought(self, tokens: int) -> None:
        """Tokens of its answer have become final."""
        among = self._among
        if among is None or tokens < 1:
            return
        first, took_1, due_1, width_1 = self._start
        now, idle, due = self._clock(), self._waited(), self._due(tokens, not first)
        if due is None:
            return
        passed, area = now - self._at, among.area(now)
        took = max(passed - (idle - self._idle), 0.0)
        width = (area - self._area) / passed if passed > 0 else 1.0
        self._at, self._idle, self._area = now, idle, area
        more = took * tokens < AT_ONCE * due
        if not first:
            self._start = tokens, took, due, width
        elif self._begins and more:
            self._start = first + tokens, took_1 + took, due_1 + due, width_1
        else:
            self._begins = False
            share = min(tokens / max(self._answer - first, 1.0), 1.0)
            took, due = took + share * took_1, due + share * due_1
            among.brought(now, tokens, took, due, width, more)

    def end(self, _: object = None) -> None:
        """It is over, or goes on in plain; idempotent."""
        among, self._among = self._among, None
        if among is None:
            return
        now, (first, took, due, width) = self._clock(), self._start
        if first and self._begins:
            among.brought(now, first, took, due, width)
        among.ends(now)
        if self.then is not None:
            self.then()


def alone() -> Member:
    """One whose commits tell nothing of others."""
    return Together().joins(float, lambda tokens, first: None)

"""Rounds counted as a life table: how far drafts got, position by position.

Pure, no clock. A round is O(1) to count: one entry, in units that grow as old rounds fade (forward
decay; Cormode et al., ICDE 2009). Knows nothing of classes, nor of what is drafted, where, by whom.
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import add

from specroute.measure.acceptance import MAX_K, NO_EVIDENCE, Acceptance


class LifeTable:
    """How far rounds got: of each number of accepted tokens, how many ended there in a rejection,
    and how many held (nothing more was judged)."""

    __slots__ = ("_frozen", "ended", "held", "judged", "logscale", "passed")

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.held: list[float] = []
        self.passed = self.judged = 0.0
        """All positions together."""
        self.logscale = 0.0
        """Logarithm of what the stored numbers were multiplied with so far."""
        self._frozen: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def add(self, accepted: int, judged: int, unit: float, start: int = 0) -> None:
        """One round that weighs ``unit``. ``start``: at how many accepted tokens it took up a run;
        of the positions before it says nothing (left truncation)."""
        if start:
            self._end(start, start, -unit)
        self._end(start + accepted, start + judged, unit)

    def _end(self, accepted: int, judged: int, unit: float) -> None:
        refused = judged > accepted
        if accepted >= MAX_K:
            accepted, refused = MAX_K, False
        ended, held = self.ended, self.held
        while len(ended) <= accepted:
            ended.append(0.0)
            held.append(0.0)
        (ended if refused else held)[accepted] += unit
        self.passed += unit * accepted
        self.judged += unit * (accepted + refused)
        self._frozen = None

    def scale(self, factor: float) -> None:
        """Multiply every stored number."""
        self.ended = [v * factor for v in self.ended]
        self.held = [v * factor for v in self.held]
        self.passed *= factor
        self.judged *= factor
        self.logscale += math.log(factor)
        self._frozen = None

    def counts(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(passed, judged) by position, in stored units."""
        if self._frozen is None:
            # Those that got past a position: all that ended or held beyond it.
            refused = self.ended[::-1]
            got_to = list(accumulate(map(add, refused, reversed(self.held))))
            if got_to and min(got_to) < 0:  # What was taken away again leaves a rounding error.
                got_to = [max(count, 0.0) for count in got_to]
            passed = [0.0, *got_to[:-1]]
            judged = list(map(add, passed, refused))
            if not judged or not judged[0]:
                passed, judged = passed[1:], judged[1:]
            passed.reverse()
            judged.reverse()
            self._frozen = (tuple(passed), tuple(judged))
        return self._frozen


class AcceptanceCounts:
    """One request's own rounds (nothing fades unless ``decay`` says so)."""

    __slots__ = ("_decay", "_table", "_unit")

    def __init__(self, decay: float = 1.0) -> None:
        self._decay, self._unit = decay, 1.0
        self._table = LifeTable()

    def add(self, accepted: int, judged: int, start: int = 0) -> None:
        """One round: of ``judged`` tokens the first ``accepted`` passed, after ``start`` of the
        same run."""
        self._unit /= self._decay
        self._table.add(accepted, judged, self._unit, start)

    def frozen(self) -> Acceptance:
        return in_units(self._table.counts(), self._unit)


def in_units(
    counts: tuple[tuple[float, ...], tuple[float, ...]], unit: float, dispersion: float = 1.0
) -> Acceptance:
    """``counts`` as judged tokens: in rounds that weigh 1, not ``unit``."""
    passed, judged = counts
    if not judged:
        return NO_EVIDENCE
    each = 1 / unit
    return Acceptance(
        tuple([v * each for v in passed]), tuple([v * each for v in judged]), dispersion
    )

"""The tree of traffic classes that lend each other what their rounds have shown.

Pure, no clock. A class with little evidence of its own starts from what the coarser ones saw
without it, as far as it turns out to be like them. How rounds are counted is ``lifetable``'s
matter; whether acceptance has changed, ``change``'s; whether new classes are like the others,
``newcomers``'.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from specroute.measure.acceptance import (
    MAX_K,
    NO_EVIDENCE,
    OTHERS,
    STRENGTH,
    Acceptance,
    hardness,
)
from specroute.measure.change import Watch
from specroute.measure.lifetable import LifeTable, in_units
from specroute.measure.newcomers import ENOUGH, LEAST_SAID, SOME, Newcomers

DECAY = 0.998
"""Of a round's weight with each later round."""
REMAINS = 0.004
"""The share of its weight that old evidence keeps once acceptance has changed."""
KEPT = 128
"""Rounds that count in full all the same, at most: those that showed it."""
HALF_LIFE_S = 24 * 3600.0
"""After this long without a round, evidence counts for half."""
_PAUSE_S = 3600.0
"""Shorter pauses take nothing."""
SHADOW = 0.5
"""What a judged token of a shadow round counts beside one of a real round."""
MOST_NEWS = 16
"""Rounds after which, at the latest, it is looked anew at what coarser classes lend."""
_RESCALE = 1e60


class Rounds:
    """The rounds of one class, real ones and shadows, under those of a coarser class.

    Both kinds fade together with every round of either kind, so that evidence of the one doesn't
    outlive news of the other. What this class has added to its parent is known exactly, and left
    out of what the parent lends.
    """

    __slots__ = (
        "_evidence",
        "_leaf",
        "_lent",
        "_news",
        "_own",
        "_recent",
        "_told",
        "_unit",
        "_watch",
        "_within",
        "_within_log",
        "new",
        "parent",
        "real",
        "seen_at",
        "shadow",
        "steps",
    )

    def __init__(self, parent: Rounds | None = None) -> None:
        self.parent = parent
        self.real, self.shadow = LifeTable(), LifeTable()
        self.seen_at = 0.0
        self.steps = 0
        """Changes of acceptance seen so far."""
        self._unit = 1.0
        self._leaf = True
        self._evidence: Acceptance | None = None
        self._own: dict[bool, Acceptance] = {}
        """What was read since the last round."""
        self._lent: Acceptance | None = None
        """What the coarser classes lent when it was last looked at,"""
        self._news = 0
        """and rounds since then."""
        self.new = Newcomers()
        """Classes under this one: like what it lent them, or harder?"""
        self._told = parent is None
        """Whether it was said of this class which it is."""
        if parent is not None:
            parent._leaf = False
        self._watch = (Watch(), Watch())
        self._recent: deque[tuple[bool, int, int, float, int]] = deque(maxlen=KEPT)
        self._within = (LifeTable(), LifeTable())
        """What of the parent's tables is this class's own, in the parent's units."""
        self._within_log = (0.0, 0.0)

    def add(
        self,
        accepted: int,
        judged: int,
        *,
        shadow: bool = False,
        weight: float = 1.0,
        start: int = 0,
        answer: object = None,
        at: float,
    ) -> None:
        """One round; ``weight`` below 1 for one that tells less; ``start``: as in
        :meth:`LifeTable.add`. ``answer`` tells answers apart."""
        parent = self.parent
        if parent is not None:
            parent.add(
                accepted, judged, shadow=shadow, weight=weight, start=start, answer=answer, at=at
            )
            self._adjust(parent)
            self._within[shadow].add(accepted, judged, parent._unit * weight, start)
        pause = at - self.seen_at
        if self.seen_at and pause > _PAUSE_S:
            self.fade(0.5 ** (pause / HALF_LIFE_S))
        self._count(accepted, judged, shadow, weight, start, answer)
        self.seen_at = at
        if not self._told and self._leaf and self.weight() >= ENOUGH:
            self._tell()

    def over(self, answer: object, *, shadow: bool = False) -> None:
        """An answer has ended: what its rounds say of a change is looked at."""
        if self.parent is not None:
            self.parent.over(answer, shadow=shadow)
        table = self.shadow if shadow else self.real
        after = self._watch[shadow].over(answer, table.judged / self._unit)
        if after:
            self._start_anew(after, shadow)
        if not self._told and self._leaf and self.weight() >= SOME:
            self._tell()

    def lender(self) -> Rounds | None:
        """The nearest coarser class that has seen others than this one."""
        child = self
        while child.parent is not None:
            if sum(child.parent._without(child).judged) >= STRENGTH:
                return child.parent
            child = child.parent
        return None

    def _tell(self) -> None:
        """Tell the class that has lent to this one whether it is as that promised."""
        lender = self.lender()
        if lender is None:
            self._told = self.weight() >= LEAST_SAID  # The first there is.
            return
        own = self.own().plus(self.own(shadow=True), SHADOW)
        lent = self._above(NO_EVIDENCE)
        rates = [p / n if n else 1.0 for p, n in zip(lent.passed, lent.judged, strict=True)]
        self._told = lender.new.tell(hardness(own, rates), self.weight())

    def _count(
        self,
        accepted: int,
        judged: int,
        shadow: bool,
        weight: float,
        start: int,
        answer: object,
    ) -> None:
        self._unit /= DECAY if weight >= 1.0 else DECAY**weight
        if self._unit > _RESCALE:
            self._scale(1 / self._unit)
            self._unit = 1.0
        table, after = self.shadow if shadow else self.real, 0
        if table.judged:
            rate, seen = table.passed / table.judged, table.judged / self._unit
            after = self._watch[shadow].add(accepted, judged, rate, seen, answer)
        self._recent.append((shadow, accepted, judged, weight, start))
        table.add(accepted, judged, self._unit * weight, start)
        self._news += 1
        self._unread()
        if after:
            self._start_anew(after, shadow)

    def _start_anew(self, after: int, shadow: bool) -> None:
        """Acceptance has changed: only the last ``after`` rounds count in full."""
        self.steps += 1
        self._lent = None
        self._scale(REMAINS)
        if self._leaf:  # A coarser class doesn't know whose its last rounds are.
            table = self.shadow if shadow else self.real
            same = [seen for seen in self._recent if seen[0] is shadow]
            for _, accepted, judged, weight, start in same[-after:]:
                table.add(accepted, judged, self._unit * weight, start)

    def _scale(self, factor: float) -> None:
        for table in (self.real, self.shadow):
            table.scale(factor)
        self._unread()

    def _unread(self) -> None:
        self._evidence = None
        self._own.clear()

    def _adjust(self, parent: Rounds) -> None:
        """Bring what was added to the parent into its present units."""
        logs = (parent.real.logscale, parent.shadow.logscale)
        if logs != self._within_log:
            for table, now, then in zip(self._within, logs, self._within_log, strict=True):
                if now != then:
                    table.scale(math.exp(now - then))
            self._within_log = logs

    def fade(self, share: float, least: float = 12.0) -> None:
        """Let what was seen count for ``share`` of its weight, down to ``least`` judged tokens."""
        if (self.real.judged + self.shadow.judged) * share > least * self._unit:
            self._unit /= share
            self._unread()

    def own(self, *, shadow: bool = False) -> Acceptance:
        """This class's own evidence of one kind."""
        found = self._own.get(shadow)
        if found is None:
            table = self.shadow if shadow else self.real
            found = in_units(table.counts(), self._unit, self._watch[shadow].dispersion)
            self._own[shadow] = found
        return found

    def evidence(self) -> Acceptance:
        """Own evidence of both kinds, and at each position up to ``STRENGTH`` tokens of what the
        coarser classes saw without this one, the nearest first. Kept until this class sees more,
        and what was lent for longer: what the others saw meanwhile is worth few tokens."""
        if self._evidence is None:
            found = self.own().plus(self.own(shadow=True), SHADOW)
            kept = min(len(self._recent) // 8, MOST_NEWS)
            if self._lent is None or self._news > kept:
                self._lent, self._news = _moved(self._above(NO_EVIDENCE), found), 0
            self._evidence = found.plus(self._lent) if self._lent.judged else found
        return self._evidence

    def lends(self) -> Acceptance:
        """What a class under this one starts from: up to ``STRENGTH`` tokens at each position."""
        whole = self.own().plus(self.own(shadow=True), SHADOW)
        lent = self._above(_filled(NO_EVIDENCE, whole))
        return replace(lent, dispersion=OTHERS, of_others=True)

    def weight(self) -> float:
        """Judged tokens of its own behind :meth:`evidence`."""
        return (self.real.judged + SHADOW * self.shadow.judged) / self._unit

    def _above(self, lent: Acceptance) -> Acceptance:
        child = self
        while child.parent is not None:
            lent = _filled(lent, child.parent._without(child))
            child = child.parent
        return lent

    def _without(self, child: Rounds) -> Acceptance:
        """Both kinds of evidence, but for what came from one child."""
        child._adjust(self)
        rest = [
            _less(in_units(table.counts(), self._unit), in_units(own.counts(), self._unit))
            for table, own in zip((self.real, self.shadow), child._within, strict=True)
        ]
        return rest[0].plus(rest[1], SHADOW)

    def dump(self) -> dict[str, Any]:
        tables = (self.real, self.shadow, *self._within)
        if self.parent is not None:
            self._adjust(self.parent)
        units = (self._unit, self._unit, *((self.parent._unit,) * 2 if self.parent else (1.0, 1.0)))
        return {
            "at": self.seen_at,
            "tables": [
                [[v / unit for v in table.ended], [v / unit for v in table.held]]
                for table, unit in zip(tables, units, strict=True)
            ],
            "watch": [watch.dump() for watch in self._watch],
            "new": self.new.dump(),
        }

    def load(self, data: Any, share: float, above: float) -> None:
        """Take over a dump, at ``share`` of its weight, where the parent has taken over its own at
        ``above``; into one that has seen nothing yet."""
        unit = self.parent._unit if self.parent is not None else 1.0
        units = (self._unit * share, self._unit * share, unit * above, unit * above)
        for table, saved, each in zip(
            (self.real, self.shadow, *self._within), data["tables"], units, strict=True
        ):
            for accepted, (ended, held) in enumerate(zip(*saved, strict=True)):
                if accepted > MAX_K:
                    break
                if ended:
                    table.add(accepted, accepted + 1, float(ended) * each)
                if held:
                    table.add(accepted, accepted, float(held) * each)
        for watch, saved in zip(self._watch, data["watch"], strict=True):
            watch.load(saved)
        if self.parent is not None:
            self._within_log = (self.parent.real.logscale, self.parent.shadow.logscale)
        self.seen_at = float(data["at"])
        self.new.load(data.get("new"))
        self._told = self.parent is None or self.weight() >= LEAST_SAID
        self._unread()


def _less(whole: Acceptance, part: Acceptance) -> Acceptance:
    if not part.judged:
        return whole
    judged = [
        rest if (rest := n - m) > 1e-6 else 0.0
        for n, m in zip_longest(whole.judged, part.judged, fillvalue=0.0)
    ]
    passed = [
        min(max(p - q, 0.0), n)
        for p, q, n in zip_longest(whole.passed, part.passed, judged, fillvalue=0.0)
    ]
    return Acceptance(tuple(passed), tuple(judged))


def _moved(lent: Acceptance, own: Acceptance) -> Acceptance:
    """What others lend, as far as this class is like them: where it is refused more often, or less,
    than they promise, at all positions, also those that it has never got to."""
    rates = [p / n if n else 1.0 for p, n in zip(lent.passed, lent.judged, strict=True)]
    power = hardness(own, rates)
    passed = [n * rate**power for rate, n in zip(rates, lent.judged, strict=True)]
    return Acceptance(tuple(passed), lent.judged, lent.dispersion)


def _filled(lent: Acceptance, further: Acceptance) -> Acceptance:
    """``lent``, and of ``further`` what it lacks of ``STRENGTH`` tokens at each position."""
    passed, judged = [], []
    for p, have, q, more in zip_longest(
        lent.passed, lent.judged, further.passed, further.judged, fillvalue=0.0
    ):
        take = min(more, STRENGTH - have)
        if take > 0:
            p, have = p + q * take / more, have + take
        passed.append(p)
        judged.append(have)
    return Acceptance(tuple(passed), tuple(judged))

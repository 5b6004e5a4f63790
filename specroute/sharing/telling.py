"""From what was measured to one message: a request's rounds together, like things summed.

Knows the form of a message and the most that one may hold. What there is too much of is thinned by
chance, never by what it says, so that what is left means the same. Pure: no clock, no Redis.

A message is an object of lists, one a kind of observation; ``classes`` holds the traffic classes
that the others name by their place. Targets and drafts are named by theirs in ``Names``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from specroute.measure.files import Note
from specroute.sharing.names import Names

MOST_ROUNDS = 32
"""Rounds of one answer that are told; of more, every so many."""
MOST = {
    "passed": 48,
    "pace": 48,
    "answer": 192,
    "verify_time": 192,
    "draft_time": 96,
    "first_draft": 48,
    "shadowed": 16,
    "predicted": 48,
}
"""Of each kind, what one message tells."""
MOST_OPEN = 4096
"""Answers under way whose rounds wait for their end."""
UNREACHED = "unreached"
"""A call that got no answer: this machine's network may be to blame."""

T = TypeVar("T")
Row = list[Any]
Round = tuple[int, int, int]
"""Accepted, judged, and how many were accepted before it in the same run."""


class Telling:
    """Gathers observations until a message is taken."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._open: dict[tuple[Any, ...], tuple[float | None, list[Round]]] = {}
        """By answer: the temperature its drafts were drawn at, its rounds so far."""
        self._kinds: dict[str, Callable[..., None]] = {
            "passed": self._passed,
            "over": self._over,
            "pace": self._pace,
            "answer": self._answer,
            "called": self._called,
            "verify_time": self._verify_time,
            "drew": self._drew,
            "draft_time": self._draft_time,
            "first_draft": self._first_draft,
            "first_pace": self._first_pace,
            "shadowed": self._shadowed,
            "predicted": self._predicted,
        }
        self._begin()

    def _begin(self) -> None:
        self._classes: dict[str, int] = {}
        self._rows: dict[str, list[Row]] = {}
        self._calls: dict[tuple[int, str, str], list[float]] = {}
        self._drawn: dict[tuple[int, str], list[float]] = {}

    def add(self, note: Note) -> None:
        """One observation. Of targets and drafts that the config doesn't name nothing is told."""
        try:
            self._kinds[note[0]](*note[1:])
        except KeyError:
            return

    def taken(self, rng: random.Random) -> dict[str, Any]:
        """The message so far, empty where there is nothing to tell; the next one begins."""
        data: dict[str, Any] = {}
        for kind, rows in self._rows.items():
            most = MOST.get(kind, 64)
            data[kind] = rows if len(rows) <= most else sampled(rows, most, rng)
        if self._calls:
            data["called"] = [[*key, *map(_short, sums)] for key, sums in self._calls.items()]
        if self._drawn:
            data["drew"] = [[*key, *map(_short, sums)] for key, sums in self._drawn.items()]
        if data and self._classes:
            data["classes"] = list(self._classes)
        self._begin()
        return data

    def cut(self) -> None:
        """Tell the rounds of answers that haven't ended as well; what follows will be another's."""
        for key, (temperature, rounds) in self._open.items():
            if rounds:
                self._told(key, temperature, rounds)
                rounds.clear()

    # --- kinds ------------------------------------------------------------------------------

    def _put(self, kind: str, *row: Any) -> None:
        self._rows.setdefault(kind, []).append(list(row))

    def _at(self, target: str) -> int:
        return self._names.target_places[target]

    def _draft(self, drafter: str) -> int:
        return self._names.draft_places[drafter]

    def _class(self, traffic: str) -> int:
        return self._classes.setdefault(traffic, len(self._classes))

    def _passed(
        self,
        target: str,
        drafter: str,
        traffic: str,
        how: str,
        temperature: float | None,
        answer: object,
        seen: Round,
    ) -> None:
        key = (target, drafter, traffic, how, answer)
        if answer is None:
            self._told(key, temperature, [seen])
            return
        found = self._open.get(key)
        if found is None:
            self._at(target), self._draft(drafter)  # KeyError: nothing is told of it.
            if len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)))
            found = self._open[key] = (temperature, [])
        found[1].append(seen)

    def _over(self, target: str, drafter: str, traffic: str, how: str, answer: object) -> None:
        key = (target, drafter, traffic, how, answer)
        found = self._open.pop(key, None)
        if found is not None and found[1]:
            self._told(key, *found)

    def _told(
        self,
        key: tuple[Any, ...],
        temperature: float | None,
        rounds: Sequence[Round],
    ) -> None:
        target, drafter, traffic, how, _ = key
        at, draft = self._at(target), self._draft(drafter)
        flat = [n for each in evenly(rounds, MOST_ROUNDS) for n in each]
        self._put("passed", at, draft, self._class(traffic), how, temperature, *flat)

    def _pace(
        self,
        target: str,
        traffic: str,
        ttft_s: float | None,
        tpot_s: float | None,
        tokens: int,
        context: int,
        in_flight: float,
    ) -> None:
        at = self._at(target)
        times = [None if s is None else _short(s) for s in (ttft_s, tpot_s)]
        load = _short(in_flight)
        self._put("pace", at, self._class(traffic), *times, tokens, context, load)

    def _answer(self, target: str, traffic: str, tokens: int) -> None:
        at = self._at(target)
        self._put("answer", at, self._class(traffic), tokens)

    def _called(
        self, target: str, outcome: str, purpose: str, cached: float | None, blocks: float
    ) -> None:
        if outcome not in ("ok", "status 429"):
            outcome = "failed" if outcome.startswith("status ") else UNREACHED
        sums = self._calls.setdefault((self._at(target), outcome, purpose), [0, 0, 0.0, 0.0])
        sums[0] += 1
        if cached is not None:
            sums[1] += 1
            sums[2] += cached * blocks
            sums[3] += blocks

    def _verify_time(self, target: str, how: str, seconds: float, context: float, k: float) -> None:
        self._put("verify_time", self._at(target), how, _short(seconds), round(context), round(k))

    def _drew(self, target: str, how: str, judged: int, draws: int, draws_s: float | None) -> None:
        sums = self._drawn.setdefault((self._at(target), how), [0, 0, 0, 0.0])
        for i, more in enumerate((1, judged, draws, draws_s or 0.0)):
            sums[i] += more

    def _draft_time(self, drafter: str, seconds: float) -> None:
        self._put("draft_time", self._draft(drafter), _short(seconds))

    def _first_draft(self, drafter: str, seconds: float, context: int, drafted: int) -> None:
        self._put("first_draft", self._draft(drafter), _short(seconds), context, drafted)

    def _first_pace(self, target: str, ttft_s: float, tpot_s: float) -> None:
        self._put("first_pace", self._at(target), _short(ttft_s), _short(tpot_s))

    def _shadowed(
        self,
        target: str,
        drafter: str,
        traffic: str,
        how: str,
        weight: float,
        rounds: Sequence[tuple[int, int]],
    ) -> None:
        at, draft = self._at(target), self._draft(drafter)
        counted = Counter(evenly(rounds, 2 * MOST_ROUNDS))
        flat = [n for (accepted, judged), n in counted.items() for n in (accepted, judged, n)]
        self._put("shadowed", at, draft, self._class(traffic), how, _short(weight), *flat)

    def _predicted(
        self,
        target: str,
        drafter: str,
        traffic: str,
        drafted: int,
        accepted: int,
        tpot_s: float | None,
    ) -> None:
        at, draft = self._at(target), self._draft(drafter)
        tpot = None if tpot_s is None else _short(tpot_s)
        self._put("predicted", at, draft, self._class(traffic), drafted, accepted, tpot)


def sampled(rows: Sequence[T], most: int, rng: random.Random) -> list[T]:
    """``most`` of them, drawn without regard to what they are, in their order."""
    return [rows[i] for i in sorted(rng.sample(range(len(rows)), most))]


def evenly(rows: Sequence[T], most: int) -> list[T]:
    """``most`` of them at most, evenly spaced."""
    n = len(rows)
    return list(rows) if n <= most else [rows[i * n // most] for i in range(most)]


def _short(value: float) -> float:
    """Four digits, which is more than any time is good for."""
    return value if isinstance(value, int) else float(f"{value:.4g}")

"""From another worker's message to observations, each checked before any is entered.

Knows which figures hold for whoever asks the same server, and which only where they were measured.
What passes of a draft, how long answers are, what a server refuses or caches is the same
everywhere. Times of calls hold for machines alike in the network; from elsewhere they are a start,
taken until a few are known. How long a local draft takes is this machine's alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from specroute.measure import Measurements
from specroute.measure.dump import START
from specroute.sharing.names import Names
from specroute.sharing.telling import UNREACHED, Round

_MOST_CALLS = 32
"""Calls of one kind that one message counts as, at most."""

Entry = tuple[int, Callable[[], None]]
"""How many observations it is, and what enters it."""
BAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What a message of another shape raises."""


def heard(
    seen: Measurements, data: Mapping[str, Any], names: Names, *, alike: bool, at: float
) -> list[Entry]:
    """What a message holds for ``seen``. ``alike``: it comes from a machine like this one; ``at``:
    when it was sent, on this machine's clock. Raises one of :data:`BAD` where anything in it is
    not as it should be; kinds that are not known are left out."""
    reader = _Reader(seen, names, [_text(c) for c in data.get("classes", ())], alike, at)
    found: list[Entry] = []
    for kind, rows in data.items():
        read = _KINDS.get(kind)
        for row in rows if read is not None else ():
            assert read is not None
            try:
                found.extend(read(reader, row))
            except BAD as error:
                raise ValueError(f"{kind} {row!r:.80}: {error}") from error
    return found


class _Reader:
    def __init__(
        self, seen: Measurements, names: Names, classes: list[str], alike: bool, at: float
    ) -> None:
        self._seen, self._names, self._classes = seen, names, classes
        self._alike, self._at = alike, at

    def _of(self, target: Any, drafter: Any, traffic: Any) -> Iterator[tuple[str, str, str]]:
        """Under all the names that this config has for them."""
        name = self._classes[_count(traffic)]
        for at in self._names.targets_at(_count(target)):
            for draft in self._names.drafts_at(_count(drafter)):
                yield at, draft, name

    def passed(self, row: list[Any]) -> Iterator[Entry]:
        target, drafter, traffic, how, temperature, *flat = row
        how, rounds = _text(how), list(_rounds(flat))
        at_temperature = None if temperature is None else _number(temperature, 10)
        for names in self._of(target, drafter, traffic):
            yield len(rounds), partial(self._passed, names, how, at_temperature, rounds)

    def _passed(
        self,
        names: tuple[str, str, str],
        how: str,
        temperature: float | None,
        rounds: list[Round],
    ) -> None:
        seen, answer = self._seen, object()
        for each in rounds:
            seen.passed(*names, *each, how, temperature, answer, self._at)
        seen.over(*names, answer, how)

    def shadowed(self, row: list[Any]) -> Iterator[Entry]:
        target, drafter, traffic, how, weight, *flat = row
        rounds: list[tuple[int, int]] = []
        for i in range(0, len(flat), 3):
            accepted, judged, n = map(_count, flat[i : i + 3])
            rounds += [_judged(accepted, judged)] * min(n, 64)
        for names in self._of(target, drafter, traffic):
            yield (
                len(rounds),
                partial(
                    self._seen.shadowed,
                    *names,
                    rounds,
                    how=_text(how),
                    weight=_number(weight, 1),
                    at=self._at,
                ),
            )

    def pace(self, row: list[Any]) -> Iterator[Entry]:
        target, traffic, ttft, tpot, tokens, context, in_flight = row
        name = self._classes[_count(traffic)]
        ttft_s, tpot_s = _maybe(ttft), _maybe(tpot)
        for at in self._names.targets_at(_count(target)):
            enter = partial(
                self._seen.pace,
                at,
                name,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                tokens=_count(tokens),
                context=_count(context),
                in_flight=_number(in_flight, 1e6),
                at=self._at,
            )
            yield 1, partial(self._timed, partial(self._pace_known, at), enter)

    def _timed(self, weight: Callable[[], float], enter: Callable[[], None]) -> None:
        """Enter a time: always from a machine alike, from elsewhere to start with."""
        if self._alike or weight() < START:
            enter()

    def _pace_known(self, target: str) -> float:
        """The observations behind it, and so below."""
        return self._seen.targets[target].ttft.weight

    def _round_known(self, target: str, how: str) -> float:
        return self._seen.judged[target, how].law.weight

    def _draft_known(self, drafter: str, first: bool) -> float:
        seen = self._seen.drafts[drafter]
        return seen.first.weight if first else seen.token.weight

    def answer(self, row: list[Any]) -> Iterator[Entry]:
        target, traffic, tokens = row
        name = self._classes[_count(traffic)]
        for at in self._names.targets_at(_count(target)):
            yield 1, partial(self._seen.answer, at, name, _count(tokens), self._at)

    def called(self, row: list[Any]) -> Iterator[Entry]:
        target, outcome, purpose, n, told, cached, blocks = row
        if _text(outcome) == UNREACHED and not self._alike:
            return
        n, told = min(_count(n), _MOST_CALLS), _count(told)
        cached, blocks = _number(cached, 1e9), _number(blocks, 1e9)
        part = min(1.0, cached / blocks) if told and blocks else None
        each = blocks / told if told else 0.0
        for at in self._names.targets_at(_count(target)):
            yield n, partial(self._called, n, at, outcome, _text(purpose), part, each, self._at)

    def _called(self, n: int, *call: Any) -> None:
        for _ in range(n):
            self._seen.called(*call)

    def verify_time(self, row: list[Any]) -> Iterator[Entry]:
        target, how, seconds, context, k = row
        how = _text(how)
        for at in self._names.targets_at(_count(target)):
            enter = partial(
                self._seen.verify_time,
                at,
                how,
                _seconds(seconds),
                context=_count(context),
                k=_count(k),
                at=self._at,
            )
            weight = partial(self._round_known, at, how)
            yield 1, partial(self._timed, weight, enter)

    def drew(self, row: list[Any]) -> Iterator[Entry]:
        target, how, rounds, judged, draws, draws_s = row
        rounds, judged, draws = _count(rounds), _count(judged), _count(draws)
        draws_s = _number(draws_s, 1e6)
        for at in self._names.targets_at(_count(target)):
            yield 1, partial(self._drew, at, _text(how), rounds, judged, draws, draws_s)

    def _drew(
        self, target: str, how: str, rounds: int, judged: int, draws: int, draws_s: float
    ) -> None:
        seconds: float | None = draws_s
        if not self._alike and self._seen.judged[target, how].drawing.weight >= START:
            seconds = None
        self._seen.drew(target, how, judged, draws, seconds, self._at, rounds=rounds)

    def draft_time(self, row: list[Any]) -> Iterator[Entry]:
        for name in self._timed_drafts(row[0]):
            enter = partial(self._seen.draft_time, name, _seconds(row[1]), self._at)
            weight = partial(self._draft_known, name, False)
            yield 1, partial(self._timed, weight, enter)

    def first_draft(self, row: list[Any]) -> Iterator[Entry]:
        drafter, seconds, context, drafted = row
        for name in self._timed_drafts(drafter):
            enter = partial(
                self._seen.first_draft,
                name,
                _seconds(seconds),
                context=_count(context),
                drafted=_count(drafted),
                at=self._at,
            )
            weight = partial(self._draft_known, name, True)
            yield 1, partial(self._timed, weight, enter)

    def _timed_drafts(self, drafter: Any) -> list[str]:
        """The drafts whose times may be taken over from where the message comes from."""
        place = _count(drafter)
        if not self._alike and self._names.drafts[place] not in self._names.remote:
            return []
        return self._names.drafts_at(place)

    def first_pace(self, row: list[Any]) -> Iterator[Entry]:
        target, ttft, tpot = row
        for at in self._names.targets_at(_count(target)):
            enter = partial(
                self._seen.first_pace,
                at,
                ttft_s=_seconds(ttft),
                tpot_s=_seconds(tpot),
                at=self._at,
            )
            yield 1, partial(self._timed, partial(self._pace_known, at), enter)

    def predicted(self, row: list[Any]) -> Iterator[Entry]:
        target, drafter, traffic, drafted, accepted, tpot = row
        drafted, accepted = _count(drafted), min(_count(accepted), _count(drafted))
        tpot_s = _maybe(tpot) if self._alike else None
        for names in self._of(target, drafter, traffic):
            yield (
                1,
                partial(
                    self._seen.predicted,
                    *names,
                    drafted=drafted,
                    accepted=accepted,
                    tpot_s=tpot_s,
                    at=self._at,
                ),
            )


_KINDS: Mapping[str, Callable[[_Reader, list[Any]], Iterator[Entry]]] = {
    "passed": _Reader.passed,
    "shadowed": _Reader.shadowed,
    "pace": _Reader.pace,
    "answer": _Reader.answer,
    "called": _Reader.called,
    "verify_time": _Reader.verify_time,
    "drew": _Reader.drew,
    "draft_time": _Reader.draft_time,
    "first_draft": _Reader.first_draft,
    "first_pace": _Reader.first_pace,
    "predicted": _Reader.predicted,
}


def _rounds(flat: list[Any]) -> Iterator[Round]:
    for i in range(0, len(flat), 3):
        accepted, judged, start = map(_count, flat[i : i + 3])
        yield *_judged(accepted, judged), start


def _judged(accepted: int, judged: int) -> tuple[int, int]:
    if accepted > judged:
        raise ValueError(f"{accepted} of {judged} tokens passed")
    return accepted, judged


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**8:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _number(value: Any, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is no number from 0 to {most:g}")
    return float(value)


def _seconds(value: Any) -> float:
    found = _number(value, 1e5)
    if found <= 0 or math.isnan(found):
        raise ValueError(f"{value!r:.40} is no time")
    return found


def _maybe(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise ValueError(f"{value!r:.40} is no name")
    return value

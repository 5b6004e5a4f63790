"""What ``overhead.py`` shows of its rows: two tables in Markdown and the lines of the criterion.

Knows seconds, no clients. Every ratio is that of a round, to ``AsyncOpenAI``'s in the same round.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CROWD = 200
"""How many calls at once the requests per second are told of."""
SHARE = 0.9
"""Of ``AsyncOpenAI``'s requests per second, that ``AsyncSpecRoute`` has to sustain."""
AIM = 1.10
"""The most that a call may take of ``AsyncOpenAI``'s wall time, if things go as they should."""
NAMES = {
    "openai": "`AsyncOpenAI`",
    "specroute": "`AsyncSpecRoute`",
    "config": "with a config",
    "litellm": "LiteLLM",
}
OURS = ("specroute", "config")


@dataclass(frozen=True)
class Turn:
    """One contender's calls in one round: seconds a call."""

    wall: float
    cpu: float
    """Of the process that made them."""


@dataclass(frozen=True)
class Row:
    """What one kind of call came to. ``turns``: by contender and round."""

    transport: str
    stream: bool
    at_once: int
    turns: Mapping[str, Mapping[int, Turn]]

    @property
    def name(self) -> str:
        return f"{self.transport}, {'stream' if self.stream else 'plain'}, {self.at_once}"

    def seconds(self, contender: str) -> float:
        """The median wall time of a call."""
        return statistics.median(turn.wall for turn in self.turns[contender].values())

    def ratios(self, contender: str, *, cpu: bool = False) -> list[float]:
        """To ``AsyncOpenAI``'s, one for each round that the contender took part in."""
        theirs = self.turns["openai"]
        return [
            turn.cpu / theirs[each].cpu if cpu else turn.wall / theirs[each].wall
            for each, turn in self.turns[contender].items()
        ]

    def ratio(self, contender: str, *, cpu: bool = False) -> float:
        return statistics.median(self.ratios(contender, cpu=cpu))

    def interval(self, contender: str) -> tuple[float, float]:
        """Of the median wall ratio: 95 % by bootstrap over the rounds."""
        ratios, rng = self.ratios(contender), random.Random(7)
        medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
        return medians[50], medians[1949]


def head(contenders: Sequence[str]) -> str:
    """The table's head, above one :func:`line` a row."""
    cells = ["transport, kind, at once", NAMES["openai"]]
    for each in contenders:
        if each in OURS:
            cells += [NAMES[each], "wall ratio", "95 %", "CPU ratio"]
        elif each != "openai":
            cells += [NAMES[each], "wall ratio", "CPU ratio"]
    return _cells(cells) + "\n" + "|" + "---|" * len(cells)


def line(row: Row) -> str:
    cells = [row.name, f"{row.seconds('openai') * 1e3:.3f} ms"]
    for each in row.turns:
        if each == "openai":
            continue
        cells += [f"{row.seconds(each) * 1e3:.3f} ms", f"{row.ratio(each):.3f}"]
        if each in OURS:
            low, high = row.interval(each)
            cells.append(f"{low:.3f}–{high:.3f}")
        cells.append(f"{row.ratio(each, cpu=True):.3f}")
    return _cells(cells)


def per_second(rows: Sequence[Row]) -> str:
    """The table of requests a second with :data:`CROWD` at once; ``""`` without such rows."""
    rows = [row for row in rows if row.at_once == CROWD]
    if not rows:
        return ""
    contenders = list(rows[0].turns)
    cells = [f"requests/s, {CROWD} at once", NAMES["openai"]]
    for each in contenders[1:]:
        cells += [NAMES[each], "of `AsyncOpenAI`'s"]
    lines = [_cells(cells), "|" + "---|" * len(cells)]
    for row in rows:
        cells = [f"{row.transport}, {'stream' if row.stream else 'plain'}"]
        cells.append(f"{1 / row.seconds('openai'):.0f}")
        for each in contenders[1:]:
            cells += [f"{1 / row.seconds(each):.0f}", f"{1 / row.ratio(each):.2f}"]
        lines.append(_cells(cells))
    return "\n".join(lines)


def criteria(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """Lines that say pass or FAIL, and whether none failed."""
    lines, good = [], True
    for row in rows:
        for each in OURS:
            if row.at_once != CROWD or each not in row.turns:
                continue
            share = 1 / row.ratio(each)
            good = good and share >= SHARE
            lines.append(
                f"{'pass' if share >= SHARE else 'FAIL'}  {row.name}, {NAMES[each].strip('`')}: "
                f"{share:.2f} of AsyncOpenAI's requests a second (at least {SHARE:g})"
            )
    ratios = [
        (row.ratio(each), row.name, each) for row in rows for each in OURS if each in row.turns
    ]
    worst, name, each = max(ratios)
    lines.append(
        f"      the largest median wall ratio is {worst:.3f}: {name}, {NAMES[each].strip('`')} "
        f"(aim: at most {AIM:.2f})"
    )
    return lines, good


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"

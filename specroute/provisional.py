"""Provisional text: what ``client.speculate()`` yields, and the screen that keeps it consistent.

Knows what a reader sees at any moment: committed text, which is final, and drafted text after it,
which may be taken back. Pure. Knows no drafter, no stream and no wire format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specroute.types import Report


@dataclass(frozen=True, slots=True)
class Provisional:
    """Drafted text, to be shown after everything that is shown. It may be rolled back."""

    text: str


@dataclass(frozen=True, slots=True)
class Rollback:
    """The last ``n_chars`` characters (Unicode code points) shown are to be removed. They were
    provisional: committed text is never taken back."""

    n_chars: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Text of the answer, final. What of it stands on the screen provisionally is now confirmed,
    the rest follows it: one of the two is always the beginning of the other."""

    text: str
    delta: Any = field(default=None, compare=False, repr=False)
    """The chunk's delta as openai's types have it: a tool call, a refusal or reasoning is there."""


@dataclass(frozen=True, slots=True)
class Done:
    """The answer has ended; nothing provisional is left on the screen."""

    report: Report


SpeculationEvent = Provisional | Rollback | Commit | Done


class Screen:
    """What a reader has been shown. Every method returns the events that bring its change about."""

    def __init__(self) -> None:
        self.committed = ""
        self.provisional = ""
        self.confirmed = 0
        """Characters that were shown provisionally and then committed,"""
        self.taken_back = 0
        """and those that were rolled back."""
        self.rollbacks = 0
        self._early: tuple[int, str] | None = None

    @property
    def text(self) -> str:
        """All that is shown."""
        return self.committed + self.provisional

    def drafted(self, at: int, text: str) -> list[Provisional | Rollback]:
        """Show ``text`` as what may follow the answer's first ``at`` characters, in the place of
        what was shown so. Before those are committed it waits; what has been refuted since is
        dropped."""
        if at > len(self.committed):
            self._early = at, text
            return []
        self._early = None
        since = self.committed[at:]
        return self._show(text[len(since) :]) if text.startswith(since) else []

    def commit(
        self, text: str, *, last: bool = False
    ) -> tuple[list[Provisional | Rollback], list[Provisional | Rollback]]:
        """(events before ``text`` is committed, events after it). ``last``: the answer ends."""
        shown = self.provisional
        same = _same(shown, text)
        before: list[Provisional | Rollback] = []
        if same < len(shown) and (same < len(text) or last):
            before = self._show(shown[:same])
        self.confirmed += same
        self.provisional = self.provisional[same:]
        self.committed += text
        early, after = self._early, []
        if last:
            self._early = None
        elif early is not None and early[0] <= len(self.committed):
            after = self.drafted(*early)
        return before, after

    def _show(self, text: str) -> list[Provisional | Rollback]:
        shown, self.provisional = self.provisional, text
        same = _same(shown, text)
        events: list[Provisional | Rollback] = []
        if same < len(shown):
            self.rollbacks += 1
            self.taken_back += len(shown) - same
            events.append(Rollback(len(shown) - same))
        if same < len(text):
            events.append(Provisional(text[same:]))
        return events


def _same(a: str, b: str) -> int:
    """Characters that both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))

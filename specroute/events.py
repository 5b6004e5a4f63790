"""What a method tells the engine: commits, finished rounds, a hand-over. Values, no logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that are part of the answer for good.

    ``ids`` in the target's vocabulary where known (an end token included), else ``None`` and
    ``text`` with its count of ``tokens``. ``finish`` is the server's own finish reason when this
    commit ends the answer. ``limited``: ``max_tokens`` is counted by the engine, not by the server.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    tokens: int = 0
    finish: str | None = None
    extra: Mapping[str, Any] | None = None
    """Other fields of a chat delta (reasoning, refusal …), handed on untouched."""
    limited: bool = True


@dataclass(frozen=True, slots=True)
class RoundDone:
    """One verification round is over: ``drafted`` tokens were sent, ``accepted`` passed.

    ``judged``: accepted plus one if the round ended in a rejection, that of the guess after its
    last token included. Every count is of one round.
    """

    drafted: int
    accepted: int
    judged: int
    draft_seconds: float
    verify_seconds: float | None
    """``None`` where the round was no request of its own (lanes)."""
    context: int
    """Tokens sent beside the draft: prompt and committed."""
    start: int = 0
    """Drafted tokens of the same run that were accepted before this round's: it was drafted after
    them, with no token of the target's own between (rounds in flight)."""
    predicted: bool = False
    """The counts are of a whole prediction: its accepted tokens are not tied to a place."""
    tpot_s: float | None = None
    """Of an answer with a prediction: seconds a token after the first."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The method stops here, nothing half-decided: the rest comes as one plain stream."""

    reason: str


Event = Commit | RoundDone | Handover

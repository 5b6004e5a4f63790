"""What a method is: one way to use a target, as a stream of events the engine applies.

Knows the events and the protocol. A method decides nothing about stop strings, ``max_tokens``,
end tokens or usage: it reports what the target has confirmed, and the engine applies it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specroute.session import Session


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that are part of the answer for good.

    ``ids`` in the target's vocabulary where known (an end token included), else ``None`` and
    ``text`` with its count of ``tokens`` (``None``: unknown). ``finish`` is the server's own finish
    reason when this commit ends the answer.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    tokens: int | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class RoundDone:
    """One verification round is over: ``drafted`` tokens were sent, ``accepted`` passed.

    ``judged``: accepted plus one if the round ended in a rejection. ``seconds``: from asking the
    drafter to the verdict. Every field counts tokens of one round.
    """

    drafted: int
    accepted: int
    judged: int
    draft_seconds: float
    verify_seconds: float
    context: int
    """Tokens sent beside the draft: prompt and committed."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The method stops here: nothing is half-decided; the answer goes on from what is committed."""

    reason: str
    lost: bool = False
    """True: the rest is to be plain (rounds lose, evidence refused); False: replan freely."""


Event = Commit | RoundDone | Handover


class MethodRun(Protocol):
    """``run(session)``: yields events until the answer ends or it hands over."""

    def __call__(self, session: Session) -> AsyncIterator[Event]: ...

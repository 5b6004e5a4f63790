"""``race``: draft and target start together; the draft's answer is used if it begins alike.

For latency under load, where the target's tokens come slowly: its first :data:`WORDS` words decide.
Until they are there, whatever both say alike is handed on at once; a draft that differs in too many
of them already has lost. Then the draft's answer goes on
if at least ``min_accept`` of those words agree, and the target is left; else the target's own
answer does. Which of the two is never decided by who finishes first: a draft whose first words
have not come by then has lost. Heuristic, whoever wins: what was chosen depends on both. Costs the
draft, and of the target the prompt and what it said until it was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from specroute.draft.base import Proposal, filled
from specroute.draft.ngram import split_pieces
from specroute.errors import DraftError, ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.http.unbroken import ended
from specroute.types import Exactness

if TYPE_CHECKING:
    from specroute.session import Session

WORDS = 12
"""The target's first words that decide."""


async def run(session: Session) -> AsyncGenerator[Event]:
    """Stream to the end. A failing draft leaves the target's stream as it is. A provider error of
    the target is raised if nothing is committed, else it becomes a hand-over."""
    session.loosen(
        Exactness.HEURISTIC, f"the draft's answer is used if the target's first {WORDS} words agree"
    )
    draft = _Draft(session)
    try:
        async with aclosing(_contest(session, draft)) as events:
            async for event in events:
                yield event
    except ProviderError as error:
        if not session.answer.text:
            raise
        yield Handover(f"the target's stream failed: {error}")
    finally:
        await draft.aclose()


async def _contest(session: Session, draft: _Draft) -> AsyncGenerator[Event]:
    target, handed, decided = "", 0, False
    finish, counted = None, None
    stream = session.stream("plain")
    async with aclosing(stream):
        async for piece in stream:
            finish = piece.finish or finish
            if piece.usage is not None:
                counted = piece.usage.completion_tokens
            target += piece.text
            if piece.extra:
                decided = True  # The draft has nothing but text.
            if piece.finish is not None:
                decided = True  # All of the target's answer is there.
            if not decided and len(words(target)) > WORDS:
                decided = True
                share = agreement(words(target)[:WORDS], words(draft.text)[:WORDS])
                if draft.usable(target[:handed], session) and share >= session.min_accept:
                    yield draft.judged(share)
                    session.notes.append(f"the draft's answer: {share:.0%} of the words agree")
                    break
                yield draft.judged(share)
                session.notes.append(f"the target's answer: {share:.0%} of the words agree")
            elif not decided and draft.lost(target, handed):
                decided = True
                yield draft.judged(draft.agreeing(target) / WORDS)
                session.notes.append("the target's answer: the draft could no longer win")
            if decided:
                await draft.aclose()  # It has lost: nothing more of it is paid for.
            ready = len(target) if decided else _alike(target, draft.text)
            if ready > handed or piece.extra:
                text = target[handed:ready]
                handed = max(handed, ready)
                yield Commit(text, None, _tokens(text), None, piece.extra, limited=False)
                if session.answer.finish is not None:
                    return
        else:
            if handed < len(target):
                rest = target[handed:]
                yield Commit(rest, None, _tokens(rest), None, limited=False)
            missing = counted - session.answer.tokens if counted is not None else 0
            yield Commit("", None, missing, finish or "stop", limited=False)
            return
    # The target is left here: its line is in the book.
    async with aclosing(_drafted(session, draft, handed)) as events:
        async for event in events:
            yield event


async def _drafted(session: Session, draft: _Draft, handed: int) -> AsyncGenerator[Event]:
    """The rest of the draft's answer, as it comes."""
    while True:
        if len(draft.text) > handed:
            text, handed = draft.text[handed:], len(draft.text)
            yield Commit(text, None, _tokens(text), limited=False)
            if session.answer.finish is not None:
                return
        elif draft.done:
            break
        else:
            await draft.more()
    if draft.ended or draft.cut:
        yield Commit("", None, int(draft.ended), "stop" if draft.ended else "length")
    else:
        yield Handover(draft.problem or "the draft did not come to an end")


def words(text: str) -> list[str]:
    """Words as they are compared: case and punctuation at their ends don't count."""
    return [word.strip(".,;:!?\"'()。，；：！？").casefold() for word in _split(text)]


def _split(text: str) -> list[str]:
    """Words; a script without spaces is cut into characters."""
    out: list[str] = []
    for word in text.split():
        out += [word] if word.isascii() or len(word) < 8 else list(word)
    return out


def agreement(target: list[str], draft: list[str]) -> float:
    """The share of the target's words that the draft has at the same place."""
    if not target:
        return 0.0
    return sum(a == b for a, b in zip(target, draft, strict=False)) / len(target)


def _alike(target: str, draft: str) -> int:
    """How much of what the target has said may be handed on before it is decided: as far as the
    draft says the same, or hasn't said anything yet."""
    pairs = enumerate(zip(target, draft, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(target))


def _tokens(text: str) -> int:
    return len(split_pieces(text))


class _Draft:
    """The draft's answer as it comes, read in a task of its own."""

    def __init__(self, session: Session) -> None:
        self.text = ""
        self.ended = self.cut = False
        self.problem = ""
        self._session = session
        self._seconds = 0.0
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name="draft")

    async def _read(self) -> None:
        session, started = self._session, self._session.clock()
        try:
            limit = session.answer.remaining
            made = await session.draft(session.predicted_tokens, whole=True, told=self._told)
            self.text = made.text or self.text
            self.ended, self.cut = made.ended, filled(made, limit)
        except DraftError as error:
            self.problem = f"the draft failed: {error}"
        finally:
            self._seconds = session.clock() - started
            self._more.set()

    def _told(self, made: Proposal) -> None:
        self.text = made.text
        self._more.set()

    @property
    def done(self) -> bool:
        return self._task.done()

    async def more(self) -> None:
        """Wait until it goes on or is over."""
        self._more.clear()
        if not self._task.done():
            await self._more.wait()
            await asyncio.sleep(0)

    def usable(self, handed: str, session: Session) -> bool:
        """Whether the answer can go on with it: it says what was handed on, and if it breaks off,
        the target can take the answer up."""
        if not self.text.startswith(handed) or self.problem:
            return False
        return (
            self.ended or session.target.can_continue(session.request, session.prompt) is not None
        )

    def agreeing(self, target: str) -> int:
        """How many of the target's first words, the one being said left out, the draft has."""
        return sum(a == b for a, b in self._pairs(target))

    def lost(self, target: str, handed: int) -> bool:
        """Whether it can't win any more, whatever both go on to say: nothing is gained by waiting
        for the target's other words then."""
        begun = target[:handed]
        if not (self.text.startswith(begun) or begun.startswith(self.text)):
            return True
        if self.done and not self.usable(begun, self._session):
            return True
        said = len(words(self.text)) if self.done else WORDS
        missed = sum(a != b for a, b in self._pairs(target)) + max(WORDS - said, 0)
        return (WORDS - missed) / WORDS < self._session.min_accept

    def _pairs(self, target: str) -> list[tuple[str, str]]:
        """The words that both have said to their ends, of those that decide."""
        mine = words(self.text)
        if not self.done:
            mine = mine[:-1]
        return list(zip(words(target)[:-1][:WORDS], mine, strict=False))

    def judged(self, share: float) -> RoundDone:
        """The contest as a round."""
        drafted = min(len(words(self.text)), WORDS)
        accepted = min(round(share * WORDS), drafted)
        return RoundDone(
            drafted=drafted,
            accepted=accepted,
            judged=min(accepted + 1, drafted),
            draft_seconds=self._seconds,
            verify_seconds=None,
            context=self._session.context,
        )

    async def aclose(self) -> None:
        """End it and its upstream; idempotent."""
        if not self._task.done():
            self._task.cancel()
            await ended(self._task)

"""Drafting beside a plain answer, for the screen alone: nothing of it is ever sent to a target.

Knows drafters and the text so far. Knows no screen and no rounds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from specroute.book import Book
from specroute.context import Committed, Prompt
from specroute.draft.base import Drafter, DraftSession
from specroute.draft.pieces import pieces
from specroute.errors import DraftError
from specroute.types import Attempt


class Ahead:
    """Drafts with the first of ``drafters`` that has anything to propose.

    ``remote``: ``provider:model`` of the drafters that are billed, by name; ``booked`` is told of
    each of their calls. ``note`` is told why a drafter is no longer asked.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        prompt: Prompt,
        remote: Mapping[str, str],
        booked: Callable[[Attempt], None],
        note: Callable[[str], None],
    ) -> None:
        self._drafters = list(drafters)
        self._prompt = prompt
        self._remote = remote
        self._booked = booked
        self._note = note
        self._sessions: dict[str, DraftSession] = {}

    async def pieces(self, text: str, k: int) -> AsyncGenerator[str]:
        """About ``k`` tokens that may follow the answer's ``text``; none where nobody has any.

        Raises :class:`DraftError` once every drafter has failed.
        """
        for drafter in tuple(self._drafters):
            any_text = False
            try:
                async with aclosing(self._ask(drafter, text, k)) as found:
                    async for piece in found:
                        any_text = True
                        yield piece
            except Exception as error:  # noqa: BLE001 - whatever a drafter raises is noted
                self._drafters.remove(drafter)
                said = str(error) if isinstance(error, DraftError) else f"{type(error).__name__}"
                self._note(f"draft {drafter.name!r} failed: {said}")
            if any_text:
                return
        if not self._drafters:
            raise DraftError("no drafter is left")

    async def _ask(self, drafter: Drafter, text: str, k: int) -> AsyncGenerator[str]:
        session = self._sessions.get(drafter.name)
        if session is None:
            session = self._sessions[drafter.name] = await drafter.open(self._prompt, None)
        target = self._remote.get(drafter.name)
        found = pieces(session, Committed(text), k)
        if target is None:
            async with aclosing(found):
                async for piece in found:
                    yield piece.text
            return
        book, called = Book(), False
        try:
            with book.attempt(target, "draft") as entry:
                async with aclosing(found):
                    async for piece in found:
                        if piece.usage is not None:  # Else it was drafted by an earlier call.
                            called, entry.usage = True, piece.usage
                            entry.estimated = piece.estimated
                        if piece.text:
                            yield piece.text
        finally:
            for attempt in book.attempts:
                if called or attempt.outcome != "ok":
                    self._booked(attempt)

    async def aclose(self) -> None:
        """Give the drafts' memory back; idempotent."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.aclose()

"""Drafting beside a plain answer, for the screen alone: nothing of it is ever sent to a target.

Knows drafters and the text so far. Knows no screen and no rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specroute.book import Book
from specroute.context import Committed, Prompt
from specroute.draft.base import Drafter, DraftSession
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

    @property
    def remote(self) -> bool:
        """Each proposal is a request, and is billed: better one long than many short ones."""
        return any(drafter.name in self._remote for drafter in self._drafters)

    async def propose(self, text: str, k: int) -> str:
        """About ``k`` tokens that may follow the answer's ``text``; ``""`` where nobody has any.

        Raises :class:`DraftError` once every drafter has failed.
        """
        for drafter in tuple(self._drafters):
            try:
                found = await self._ask(drafter, text, k)
            except Exception as error:  # noqa: BLE001 - whatever a drafter raises is noted
                self._drafters.remove(drafter)
                said = str(error) if isinstance(error, DraftError) else f"{type(error).__name__}"
                self._note(f"draft {drafter.name!r} failed: {said}")
                continue
            if found:
                return found
        if not self._drafters:
            raise DraftError("no drafter is left")
        return ""

    async def _ask(self, drafter: Drafter, text: str, k: int) -> str:
        session = self._sessions.get(drafter.name)
        if session is None:
            session = self._sessions[drafter.name] = await drafter.open(self._prompt, None)
        target = self._remote.get(drafter.name)
        if target is None:
            return (await session.propose(Committed(text), k)).text
        book = Book()
        try:
            with book.attempt(target, "draft") as entry:
                proposal = await session.propose(Committed(text), k)
                if proposal.usage is not None:
                    entry.usage = proposal.usage
        finally:
            # A proposal out of what was drafted before is no call.
            for attempt in book.attempts:
                if attempt.outcome != "ok" or proposal.usage is not None:
                    self._booked(attempt)
        return proposal.text

    async def aclose(self) -> None:
        """Give the drafts' memory back; idempotent."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.aclose()

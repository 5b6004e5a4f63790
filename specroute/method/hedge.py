"""``hedge``: a plain call, and a second one where the first token is late.

Late is later than 95 of 100 of the target's own; how many requests may be hedged is bounded by a
token bucket (the policy's ``hedge``, a share). The stream whose first token comes first is the
answer, whatever either would have said: the winner is never the first to finish, the longer or the
shorter, so the answer is distributed as a plain one. The other is cancelled at once. Exact under
every sampling setting; no draft is needed. Costs a second prompt, and what the loser has said, for
the requests that are hedged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

from specroute.errors import ProviderError
from specroute.events import Commit, Event
from specroute.http.unbroken import ended
from specroute.target.stream import Piece

if TYPE_CHECKING:
    from specroute.session import Session


async def run(session: Session) -> AsyncGenerator[Event]:
    """Stream to the end. Provider errors pass through once no stream is left."""
    hedging = session.target.hedging
    hedging.begin(session.hedge)
    entries = [_Entry(session, "plain")]
    try:
        winner = await _first(session, entries)
        now = session.clock()
        for entry in entries:  # A loser has taken at least so long.
            hedging.seen(now - entry.sent)
        for loser in entries:
            if loser is not winner:
                await loser.aclose()
        finish, counted = None, None
        while (piece := await winner.next()) is not None:
            finish = piece.finish or finish
            if piece.usage is not None:
                counted = piece.usage.completion_tokens
            tokens = piece.tokens if piece.tokens is not None else int(bool(piece.text))
            if piece.text or piece.extra:
                yield Commit(piece.text, None, tokens, None, piece.extra, limited=False)
        missing = counted - session.answer.tokens if counted is not None else 0
        yield Commit("", None, missing, finish or "stop", limited=False)
    finally:
        async with AsyncExitStack() as left:
            for entry in reversed(entries):
                left.push_async_callback(entry.aclose)


async def _first(session: Session, entries: list[_Entry]) -> _Entry:
    """The stream whose first token came first. Raises the last error when none is left."""
    hedging = session.target.hedging
    after = hedging.after_s
    if after is not None:
        await asyncio.wait([entries[0].arrival], timeout=after)
        if not entries[0].arrival.done() and hedging.take():
            entries.append(_Entry(session, "hedge"))
            session.notes.append(f"no first token within {after:.2f} s: a second request was sent")
    left = list(entries)
    while True:
        await asyncio.wait([e.arrival for e in left], return_when=asyncio.FIRST_COMPLETED)
        for entry in [e for e in left if e.arrival.done()]:
            # Both in one turn of the loop: the one that was sent first, whatever it says.
            if entry.arrival.exception() is None:
                return entry
            left.remove(entry)
            if not left:
                raise entry.arrival.exception() or ProviderError("no stream is left", provider="")


class _Entry:
    """One stream of the two, its first piece read in a task of its own."""

    def __init__(self, session: Session, purpose: str) -> None:
        self.sent = session.clock()
        self._stream = session.stream(purpose)
        self.arrival: asyncio.Task[list[Piece]] = asyncio.create_task(
            self._until_first(), name=purpose
        )

    async def _until_first(self) -> list[Piece]:
        """The pieces up to and with the first that says something."""
        found: list[Piece] = []
        async for piece in self._stream:
            found.append(piece)
            if piece.text or piece.extra or piece.finish:
                break
        return found

    async def next(self) -> Piece | None:
        """The next piece, ``None`` at the end."""
        first = self.arrival.result()
        if first:
            return first.pop(0)
        return await anext(self._stream, None)

    async def aclose(self) -> None:
        """End it and its upstream; idempotent."""
        if not self.arrival.done():
            self.arrival.cancel()
        await ended(self.arrival)
        if not self.arrival.cancelled():
            self.arrival.exception()  # Seen: a loser's error is nobody's.
        async with aclosing(self._stream):
            pass

"""A long draft piece by piece, as it is made.

Knows that some drafts stream and that others are asked for a few tokens at a time. Knows nothing of
what is done with them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from specroute.context import Committed
from specroute.draft.base import DraftSession, Proposal

FIRST, MOST = 4, 16
"""Tokens of the first piece, so that it comes soon; later ones double up to."""


@runtime_checkable
class Streams(Protocol):
    """A drafting session whose draft arrives bit by bit, in one request."""

    def stream(self, committed: Committed, k: int) -> AsyncGenerator[Proposal]:
        """As ``propose``, in pieces; the last may have no text, and the usage."""
        ...


async def pieces(
    session: DraftSession, committed: Committed, k: int, temperature: float = 0.0
) -> AsyncGenerator[Proposal]:
    """Up to about ``k`` tokens after ``committed``, until the draft ends or has no more to say.

    Raises what the session raises. Closing it early ends a request that is under way.
    """
    if isinstance(session, Streams):
        async with aclosing(session.stream(committed, k)) as found:
            async for piece in found:
                yield piece
        return
    made, size = 0, FIRST
    while made < k:
        asked = min(size, k - made)
        piece = await session.propose(committed, asked, temperature)
        if not piece:
            return
        yield piece
        if piece.ended:
            return
        ids = committed.ids
        joined = (*ids, *piece.ids) if ids is not None and piece.ids is not None else None
        committed = Committed(committed.text + piece.text, joined)
        made += len(piece.ids) if piece.ids is not None else asked
        size = min(2 * size, MOST)

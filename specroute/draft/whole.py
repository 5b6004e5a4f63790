"""Asking for a draft of the whole answer or of some tokens, booked as far as it came.

Knows how a long draft's pieces become one proposal in the target's ids. Knows no rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace

from specroute.book import Book, Entry
from specroute.context import Committed
from specroute.draft.base import DraftSession, Proposal, joined
from specroute.draft.ngram import split_pieces
from specroute.draft.pieces import Streams, pieces
from specroute.draft.remote import in_context
from specroute.vocabulary import Vocabulary


async def whole(
    drafting: DraftSession,
    committed: Committed,
    k: int,
    temperature: float,
    vocabulary: Vocabulary | None,
    told: Callable[[Proposal], None],
    book: Book,
    target: str,
) -> Proposal:
    """Up to about ``k`` tokens after ``committed``, in the target's ``vocabulary`` if it is known.

    ``told`` is told of all there is after each piece. A draft that is streamed from a provider
    (``target``: its ``provider:model``) has its line in the ``book`` however it ends, and no usage.
    Raises what the session raises.
    """
    made = Proposal("", ())
    billed = isinstance(drafting, Streams)
    with book.attempt(target, "draft") if billed else nullcontext(Entry()) as entry:
        entry.sends = len(split_pieces(committed.text))
        async with aclosing(pieces(drafting, committed, k, temperature)) as found:
            async for piece in found:
                made = joined(made, piece)
                if made.usage is not None:
                    entry.usage = made.usage
                    entry.estimated = made.estimated
                told(made)
    if made.ids is None and vocabulary is not None and committed.ids is not None:
        ids = in_context(vocabulary, committed.ids, made.text)[:k]
        said = vocabulary.decode(ids)
        made = replace(made, text=said, ids=ids, ended=made.ended and said == made.text)
    return made


async def some(
    drafting: DraftSession,
    committed: Committed,
    k: int,
    temperature: float,
    book: Book,
    target: str,
) -> Proposal:
    """Up to ``k`` tokens after ``committed``. A call that a provider counted has its line in the
    ``book``; so has one that is ended before its answer. Raises what the session raises."""
    try:
        proposal = await drafting.propose(committed, k, temperature)
    except asyncio.CancelledError:
        if isinstance(drafting, Streams):  # Nothing else in it takes time.
            with book.attempt(target, "draft") as entry:
                entry.sends = len(split_pieces(committed.text))
                raise
        raise
    if proposal.usage is not None:
        with book.attempt(target, "draft") as entry:
            entry.usage = proposal.usage
    return proposal

"""The loop: run the planned method, apply its events, hand text on, measure, fall back to plain.

Read this first. Which plan, is `policy`'s matter; how a target is used, `method`'s; what ends an
answer, ``answer``'s; what a request's state is, ``session``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from specroute.answer import Delta
from specroute.errors import ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.method import METHODS
from specroute.session import Session
from specroute.types import Method

SETTLE_S = 0.1
"""How long a method may read on after the answer has ended, for the server's own bill."""


class NothingCommitted(Exception):
    """Speculation handed over before any text was committed: the request goes plain as it is."""


async def speculate(session: Session) -> AsyncGenerator[Delta]:
    """Yield the answer's text as it becomes final, to its end.

    Every event is applied here and nowhere else. A hand-over, or a fault where somebody can go on,
    continues as one plain stream from what is committed. Raises :class:`NothingCommitted`, and the
    provider errors of that stream.
    """
    method = session.plan.method
    while True:
        if method is Method.PLAIN:
            session.member.end()
        try:
            async with aclosing(METHODS[method](session)) as events:
                async for event in events:
                    match event:
                        case Commit():
                            yield session.apply(event)
                        case RoundDone():
                            session.round(event)
                        case Handover(reason):
                            session.notes.append(reason)
                            method = Method.PLAIN
                    if session.answer.finish is not None:
                        await _settle(session, events)
                        return
        except ProviderError as error:
            if method is Method.PLAIN or not await session.moves(error):
                raise
            method = Method.PLAIN
        if not session.answer.tokens and not session.answer.text:
            raise NothingCommitted(session.notes[-1])


async def _settle(session: Session, events: AsyncGenerator[Event]) -> None:
    """Let the method read its stream's end, where the server's own count stands. The answer is
    there in full: a stream that breaks now has nothing left to spoil."""
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(SETTLE_S):
            async for event in events:
                if isinstance(event, RoundDone):
                    session.round(event)

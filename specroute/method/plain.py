"""``plain``: one stream of the target's own, from the start or from what is already committed.

Exact under every sampling setting: the target continues its own text. Costs one call; from a
hand-over also the prompt once more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from specroute.errors import ProviderError
from specroute.events import Commit, Event
from specroute.types import Exactness

if TYPE_CHECKING:
    from specroute.continuing import Continuing

LOST = "the bytes of a character were lost: the server did not name the tokens that finish it"


async def run(session: Continuing) -> AsyncGenerator[Event]:
    """Stream to the end. After a fault the answer goes on from its text, here or elsewhere, where
    anybody can; else provider errors pass through: there is nothing left to fall back on."""
    while True:
        if session.full:
            yield Commit("", None, 0, "length", limited=False)
            return
        named = _finish_character(session)
        begun = bool(session.answer.tokens)
        if begun and (session.answer.ids is None or not session.by_ids):
            session.loosen(
                Exactness.BOUNDED,
                "retokenised: the target continued its own text, cut into tokens anew by its "
                "server",
            )
        before = session.answer.tokens
        finish, counted = None, None
        stream = session.stream(_purpose(session, begun), show_tokens=named)
        try:
            async with aclosing(stream):
                async for piece in stream:
                    finish = piece.finish or finish
                    if piece.usage is not None and piece.usage.completion_tokens is not None:
                        counted = piece.usage.completion_tokens - piece.again
                    tokens = piece.tokens if piece.tokens is not None else int(bool(piece.text))
                    if named and piece.ids is not None and session.answer.ids is not None:
                        yield Commit(ids=piece.ids)
                    elif piece.text or piece.extra:
                        if session.answer.inside_character:
                            session.loosen(Exactness.HEURISTIC, LOST)
                        yield Commit(piece.text, None, tokens, None, piece.extra, limited=False)
            break
        except ProviderError as error:
            if finish is not None:
                break  # Broken after its end: nothing is missing.
            if not session.full and not await session.moves(error):
                raise
    # The server's own count, the end token in it, is only now there.
    missing = before + counted - session.answer.tokens if counted is not None else 0
    yield Commit("", None, missing, finish or "stop", limited=False)


def _finish_character(session: Continuing) -> bool:
    """Where the committed ids end inside a character, the server's text of what follows begins
    with the rest of its bytes, which is no text. True: its tokens are to be named, and are read
    instead. Where it names none, the character is left to it from its first byte."""
    answer = session.answer
    if not answer.inside_character:
        return False
    if answer.ids is not None and session.by_ids and session.target.by_ids:
        return True
    answer.drop_unfinished()
    if not session.request.greedy:
        session.loosen(Exactness.HEURISTIC, "the beginning of a character was drawn anew")
    return False


def _purpose(session: Continuing, begun: bool) -> str:
    if session.resumed:
        return "resume"
    return "handover" if begun else "plain"

"""``score`` while the draft has nothing to propose: the target's own stream, until it has.

A prompt lookup has nothing to say where an answer has not yet come to what was seen before. The
plain stream runs meanwhile, as if nothing else were there, and each of its tokens is held against
what the lookup says: ``CONFIRMED`` of them in a row as it said, more to come, and a policy that
would draft, end the stream, and rounds begin.

Exact under every sampling setting: each token is the target's own, and whether the stream ends
after it depends on tokens that are committed, never on one to come. Costs one call; one that is
ended early also the prompt once more, in the first round. Asks only drafts that are free.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specroute.draft.base import Proposal
from specroute.errors import DraftError
from specroute.events import Commit, Event

if TYPE_CHECKING:
    from specroute.session import Session
    from specroute.target.stream import Piece

CONFIRMED = 2
"""Tokens in a row that have to come as the lookup said: a match of two tokens alone is mostly
chance, and ending a stream for it would cost a request."""
NOTHING = Proposal("")
AHEAD = 16
"""Tokens that are looked up at a time."""


def can_listen(session: Session) -> bool:
    """Whether rounds could go on from such a stream, and there is a draft to be asked meanwhile."""
    if not session.free_drafters:
        return False
    if not session.scores_by_ids:
        return True
    return session.answer.ids is not None and session.target.by_ids and session.by_ids


async def listen(session: Session) -> AsyncGenerator[Event]:
    """Stream on; returns with the answer unfinished where rounds should begin.

    Provider errors pass through, as from ``plain``: there is nothing left to fall back on.
    """
    before, counted, finish = session.answer.tokens, None, None
    heard = _Heard(session)
    stream = session.stream("handover" if before else "plain", show_tokens=session.scores_by_ids)
    async with aclosing(stream):
        async for piece in stream:
            finish = piece.finish or finish
            if piece.usage is not None:
                counted = piece.usage.completion_tokens
                if not before and piece.usage.prompt_tokens is not None:
                    session.prompt_tokens = piece.usage.prompt_tokens
            for commit in _commits(session, piece):
                yield commit
            # Read on behind the answer's end: the server's own count comes last.
            going = finish is None and session.answer.finish is None
            if going and (piece.text or piece.ids) and await heard.out(piece):
                return
    missing = before + counted - session.answer.tokens if counted is not None else 0
    yield Commit("", None, missing, finish or "stop", limited=False)


def _commits(session: Session, piece: Piece) -> list[Commit]:
    if session.scores_by_ids and piece.ids is not None and session.answer.ids is not None:
        return [Commit(ids=(token,)) for token in piece.ids]
    tokens = piece.tokens if piece.tokens is not None else int(bool(piece.text))
    if piece.text or piece.extra:
        return [Commit(piece.text, None, tokens, None, piece.extra, limited=False)]
    return []


@dataclass(slots=True)
class _Heard:
    """What the lookup said would come, and for how many tokens in a row it came so."""

    session: Session
    said: Proposal = NOTHING
    hits: int = 0
    asking: bool = True

    async def out(self, piece: Piece) -> bool:
        """Take a piece that is committed; true: enough has come as it was said."""
        session = self.session
        if not self.asking:
            return False
        if session.scores_by_ids and session.answer.ids is None:
            self.asking = False  # The server stopped naming its tokens: rounds can't go on.
            return False
        fits, self.said = _rest(self.said, piece)
        self.hits = self.hits + 1 if fits else 0
        try:
            if not self.said:
                self.said = await session.look_up(AHEAD)
        except DraftError:
            self.asking = False
            return False
        return self.hits >= CONFIRMED and bool(self.said) and session.next_k() > 0


def _rest(said: Proposal, piece: Piece) -> tuple[bool, Proposal]:
    """(whether ``piece`` came as ``said``, what is left of that)."""
    ids = piece.ids
    if said.ids is not None and ids is not None:
        fits = bool(ids) and said.ids[: len(ids)] == ids
        return fits, Proposal("", said.ids[len(ids) :] if fits else ())
    fits = bool(piece.text) and said.text.startswith(piece.text)
    return fits, Proposal(said.text.removeprefix(piece.text) if fits else "")

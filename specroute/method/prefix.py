"""``prefix``: streams started beside the plain one, from drafted beginnings of its answer.

Lane 0 is the plain stream. Lanes 1..m start from committed + drafted chunks. Where lane 0's own
tokens cover a lane's start exactly, that lane takes over, already ahead; where they leave the draft
the other lanes are cancelled and nothing was lost. Each lane is the target's own sample given a
beginning that the target itself produced, so the answer is distributed as a plain one, under any
sampling settings, provided the switch falls on one of lane 0's token boundaries. Costs one more
request, and the prompt as input, a lane.

Which lane goes on is never decided by how fast or how long it is: a lane whose first token has not
come when it is covered is dropped, every other is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specroute.alignment import cut_points, matched_pieces
from specroute.context import Committed
from specroute.draft.base import Proposal
from specroute.draft.ngram import split_pieces
from specroute.errors import DraftError, ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.method.lane import Lane
from specroute.target.stream import Piece
from specroute.types import Exactness, Usage

if TYPE_CHECKING:
    from specroute.session import Session

LANES = 3
"""Lanes beside the plain stream, where the plan leaves them open."""
FRUITLESS = 3
"""Waves in a row that brought no switch, after which a request starts no more."""


async def run(session: Session) -> AsyncGenerator[Event]:
    """Stream to the end, switching lanes where the draft held.

    Draft failures and dead lanes leave the plain stream as it is. A provider error of the leading
    lane becomes a hand-over if something is committed, and is raised if nothing is.
    """
    lead = Lane(
        session.stream("plain", show_tokens=True), _position(session), session.answer.tokens
    )
    race = _Race(session, lead)
    try:
        async for event in race.run():
            yield event
    except ProviderError as error:
        if not session.answer.tokens:
            raise
        yield Handover(f"the leading lane failed: {error}")
    finally:
        await race.aclose()


def _position(session: Session) -> int:
    ids = session.answer.ids
    return len(ids) if ids is not None and _names_ids(session) else len(session.answer.text)


def _names_ids(session: Session) -> bool:
    """Lanes begin from ids, and their streams name theirs."""
    return session.target.by_ids and session.by_ids


@dataclass(slots=True)
class _Wave:
    """One draft with the lanes started from it. Positions are the answer's."""

    start: int
    draft: tuple[int, ...] | str
    lanes: list[Lane] = field(default_factory=list)
    matched: int = 0
    draft_seconds: float = 0.0
    switched: bool = False

    def counts(self) -> tuple[int, int]:
        """(drafted, matched) in tokens; of a draft by text in pieces of about a token each."""
        if not isinstance(self.draft, str):
            return len(self.draft), self.matched
        pieces = split_pieces(self.draft)
        return len(pieces), matched_pieces(pieces, self.draft[: self.matched])[0]


class _Race:
    """The leading lane, the draft being made, and the wave of lanes started from the last one."""

    def __init__(self, session: Session, lead: Lane) -> None:
        self.session = session
        self.lead = lead
        self.most = session.plan.lanes or LANES
        self.lanes = [lead]
        """All that were ever started."""
        self.wave: _Wave | None = None
        self.drafting: asyncio.Task[Proposal] | None = None
        self.draft_at = 0
        self.by_ids = _names_ids(session)
        self.over = False
        """No further drafts: the draft failed or has nothing to propose."""
        self.fruitless = 0
        """Waves in a row without a switch."""
        self.finish: str | None = None
        self.counted: Usage | None = None
        self.switched = False
        """The leading lane is no longer the plain stream, whose server keeps ``max_tokens``."""

    async def run(self) -> AsyncGenerator[Event]:
        while True:
            self._start_draft()
            piece = await self._next_piece()
            if piece is None:
                break
            async for event in self._take(piece):
                yield event
            if self.session.answer.finish is not None:
                await self._settle()
                break
        if self.wave is not None:
            yield self._end_wave(rejected=False)
        if self.session.answer.finish is None:
            yield self._closing()

    async def _settle(self) -> None:
        """The answer has ended: read on to the leading lane's own end, for its server's count."""
        while await self.lead.next() is not None:
            pass

    # --- drafting ---------------------------------------------------------------------------

    def _start_draft(self) -> None:
        if self.over or self.drafting is not None or self.wave is not None:
            return
        k = self.session.next_k()
        if k == 0 or self.fruitless >= FRUITLESS:
            self.over = True
            return
        self.draft_at = _position(self.session)
        self.drafting = asyncio.create_task(
            self.session.draft(k * self.most, greedy=True), name="draft for lanes"
        )

    async def _next_piece(self) -> Piece | None:
        """The leading lane's next piece; meanwhile a finished draft becomes a wave."""
        coming = asyncio.ensure_future(self.lead.next())
        try:
            while self.drafting is not None and not coming.done():
                await asyncio.wait((coming, self.drafting), return_when=asyncio.FIRST_COMPLETED)
                if self.drafting.done():
                    self._launch()
            return await coming
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait([coming])

    def _launch(self) -> None:
        session, drafting = self.session, self.drafting
        self.drafting = None
        if drafting is None:
            return
        try:
            proposal = drafting.result()
        except DraftError as error:
            self.over = True
            session.notes.append(f"the draft failed: {error}")
            return
        if not proposal:
            self.over = True
            return
        ids = proposal.ids[:-1] if proposal.ended and proposal.ids else proposal.ids
        draft: tuple[int, ...] | str | None = ids if self.by_ids else proposal.text
        if not draft:
            self.over = True
            if proposal.text and self.by_ids:
                session.notes.append("the draft's tokens are not in the target's vocabulary")
            return
        # What the leading lane has said since the draft was asked for must be what it drafted.
        since = _tail(session, self.draft_at, self.by_ids)
        if draft[: len(since)] != since:
            return
        wave = _Wave(self.draft_at, draft, matched=len(since), draft_seconds=proposal.seconds)
        here = self.draft_at + len(since)
        limit = session.answer.max_tokens if self.by_ids else None
        for cut in self._cuts(wave):
            if self.draft_at + cut > here and (limit is None or self.draft_at + cut < limit):
                wave.lanes.append(self._lane(wave, cut))
        if wave.lanes:
            self.wave = wave
        else:
            self.over = True

    def _cuts(self, wave: _Wave) -> Sequence[int]:
        """Where in the draft lanes start: at the end of each K-th token, or, by text, at the
        nearest place where a token boundary is sure (before a space between non-spaces)."""
        size = len(wave.draft)
        step = max(size // self.most, 1)
        wanted = list(range(step, size + 1, step))[: self.most]
        if not isinstance(wave.draft, str):
            return wanted
        sure = cut_points(wave.draft)
        cuts: list[int] = []
        for want in wanted:
            near = [c for c in sure if c <= want and c > (cuts[-1] if cuts else 0)]
            if near:
                cuts.append(near[-1])
        return cuts

    def _lane(self, wave: _Wave, cut: int) -> Lane:
        session = self.session
        base = _before(session, wave.start, self.by_ids)
        begun = wave.draft[:cut]
        if isinstance(begun, str):
            committed = Committed(base.text + begun, None)
            used = session.answer.tokens  # refined by the server's own max_tokens at the switch
        else:
            committed = Committed("", (*(base.ids or ()), *begun))
            used = wave.start + cut
        stream = session.target.stream(
            session.request,
            session.prompt,
            committed,
            used=used,
            purpose="lane",
            book=session.book,
            deadline=session.deadline,
            show_tokens=True,
        )
        lane = Lane(stream, wave.start + cut, used)
        self.lanes.append(lane)
        return lane

    # --- following the leading lane ---------------------------------------------------------

    async def _take(self, piece: Piece) -> AsyncGenerator[Event]:
        """Commit one piece of the leading lane; switch where it covers the next lane's start."""
        self.counted = piece.usage or self.counted
        if piece.extra:
            self.over = True  # A lane would begin after the text, without what came beside it.
        self.finish = piece.finish or self.finish
        if self.by_ids and piece.ids is not None:
            last = len(piece.ids) - 1
            for i, token in enumerate(piece.ids):
                yield Commit(ids=(token,))
                done = self._follow_id(token)
                if done is not None:
                    yield done
                if self.session.answer.finish is not None:
                    return
                if self._covered() and self._switch(at_boundary=i == last):
                    return
        elif piece.text or piece.extra:
            async for event in self._take_text(piece):
                yield event

    def _closing(self) -> Commit:
        """The end of the leading lane: its finish, and the server's count where it gave one."""
        session, missing = self.session, 0
        if self.counted is not None:
            prompt, made = self.counted.prompt_tokens, self.counted.completion_tokens
            if made is not None:
                missing = self.lead.start_tokens + made - session.answer.tokens
            if prompt is not None and session.prompt_tokens is None:
                session.prompt_tokens = prompt - self.lead.start_tokens
        return Commit("", None, missing, self.finish or "stop", limited=False)

    def _follow_id(self, token: int) -> RoundDone | None:
        wave = self.wave
        if wave is None or isinstance(wave.draft, str):
            return None
        if wave.matched < len(wave.draft) and wave.draft[wave.matched] == token:
            wave.matched += 1
            if wave.matched < len(wave.draft) or wave.lanes:
                return None
            return self._end_wave(rejected=False)
        return self._end_wave(rejected=wave.matched < len(wave.draft))

    def _covered(self) -> bool:
        wave = self.wave
        return bool(wave and wave.lanes and wave.lanes[0].start <= wave.start + wave.matched)

    def _switch(self, *, at_boundary: bool) -> bool:
        """The next lane's start is covered: it leads from here, if it is covered exactly and has
        begun to answer (settled by its first token alone); else it is dropped."""
        wave = self.wave
        if wave is None:
            return False
        lane = wave.lanes.pop(0)
        if lane.start != wave.start + wave.matched or not lane.ready or not at_boundary:
            lane.cancel()
            return False
        old, self.lead = self.lead, lane
        self.counted = self.finish = None
        self.switched = True
        wave.switched = True
        old.cancel()
        return True

    def _end_wave(self, *, rejected: bool) -> RoundDone:
        wave, self.wave = self.wave, None
        assert wave is not None
        self.fruitless = 0 if wave.switched else self.fruitless + 1
        for lane in wave.lanes:
            lane.cancel()
        drafted, accepted = wave.counts()
        return RoundDone(
            drafted=drafted,
            accepted=accepted,
            judged=accepted + (rejected and accepted < drafted),
            draft_seconds=wave.draft_seconds,
            verify_seconds=None,
            context=self.session.context,
        )

    # --- by text ----------------------------------------------------------------------------

    async def _take_text(self, piece: Piece) -> AsyncGenerator[Event]:
        session = self.session
        parts = piece.texts if piece.texts and "".join(piece.texts) == piece.text else (piece.text,)
        seen = parts is piece.texts
        extra = piece.extra
        left = list(parts)
        while left or extra:
            part = left.pop(0) if left else ""
            # Where a boundary can't be seen, what comes after it must show it.
            if not seen and self._covered() and self._switch_text(part):
                return
            wave, tokens, fits = self.wave, int(bool(part)), False
            if wave is not None and isinstance(wave.draft, str):
                next_start = wave.lanes[0].start - wave.start if wave.lanes else None
                if not seen and next_start and wave.matched < next_start < wave.matched + len(part):
                    cut = next_start - wave.matched
                    left.insert(0, part[cut:])
                    part, tokens = part[:cut], 0
                fits = wave.draft.startswith(part, wave.matched)
                if fits:
                    wave.matched += len(part)
                else:
                    yield self._end_wave(rejected=True)
            yield Commit(part, None, tokens, None, extra, limited=self.switched)
            extra = None
            if session.answer.finish is not None:
                return
            if wave is None or not fits:
                continue
            if seen and self._covered() and self._switch_text(None):
                return
            if wave.matched == len(wave.draft) and not wave.lanes:
                yield self._end_wave(rejected=False)

    def _switch_text(self, ahead: str | None) -> bool:
        """As :meth:`_switch`. Where the boundary was not seen, ``ahead`` is how the leading lane
        goes on: both lanes must do so with a space."""
        wave = self.wave
        if wave is None:
            return False
        lane = wave.lanes[0]
        spaces = ahead is None or (ahead.startswith(" ") and lane.buffered_text().startswith(" "))
        lane.start_tokens = self.session.answer.tokens
        if not self._switch(at_boundary=spaces):
            return False
        self.session.loosen(
            Exactness.BOUNDED,
            "retokenised: a lane's beginning was cut into tokens by its server",
        )
        return True

    async def aclose(self) -> None:
        """End every lane and the draft; idempotent."""
        for lane in self.lanes:
            lane.cancel()
        if self.drafting is not None:
            self.drafting.cancel()
            await asyncio.wait([self.drafting])
        for lane in self.lanes:
            await lane.ended()


def _tail(session: Session, start: int, by_ids: bool) -> tuple[int, ...] | str:
    """What has been committed since position ``start``."""
    if by_ids:
        return tuple((session.answer.ids or [])[start:])
    return session.answer.text[start:]


def _before(session: Session, start: int, by_ids: bool) -> Committed:
    committed = session.committed
    if by_ids:
        return Committed("", (committed.ids or ())[:start])
    return replace(committed, text=committed.text[:start], ids=None)

"""``prefix``: streams started beside the plain one, from drafted beginnings of its answer.

Lane 0 is the plain stream. Lanes start beside it from committed + drafted text, as the draft grows.
Where the leading stream's own tokens cover a lane's start exactly, that lane takes over, already
ahead, and new ones are started; where they leave the draft the other lanes are cancelled and
nothing was lost. Each lane is the target's own sample given a beginning that the target itself
produced, so the answer is distributed as a plain one, under any sampling settings, provided the
switch falls on one of the leading stream's token boundaries. Costs one more request, and the prompt
as input, a lane. A draft that has nothing yet is asked again while the plain stream runs on.

Which lane goes on is never decided by how fast or how long it is: a lane whose first token has not
come when it is covered is dropped, every other is taken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from specroute.draft.base import Proposal
from specroute.errors import DraftError, ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.http.unbroken import ended
from specroute.method.drafted import Drafted
from specroute.method.fleet import Fleet, Tempo
from specroute.method.lane import Lane
from specroute.method.listen import CONFIRMED
from specroute.target.stream import Piece
from specroute.types import Exactness, Usage

if TYPE_CHECKING:
    from specroute.session import Session

LANES = 3
"""Lanes beside the plain stream, where the plan leaves them open."""
FRUITLESS = 6
"""Drafts in a row whose lanes all failed, after which a request starts no more."""
MOST_AHEAD = 512
"""Tokens that are drafted ahead of the leading stream at most."""
BROKEN = 3
"""Lanes that broke, after which it starts no more: the server doesn't want as many calls."""
RETOKENISED = "retokenised: a lane's beginning was cut into tokens by its server"
LOOSE = "match = loose: lanes began from words that only resemble the answer's"

_WORDS = re.compile(r"\s*\S+|\s+")


async def run(session: Session) -> AsyncGenerator[Event]:
    """Stream to the end, switching lanes where the draft held.

    Draft failures and dead lanes leave the plain stream as it is. A provider error of the leading
    lane becomes a hand-over if something is committed, and is raised if nothing is.
    """
    lead = Lane(
        session.stream("plain", show_tokens=True),
        _position(session),
        session.answer.tokens,
        session.clock,
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
    return session.target.by_ids and session.by_ids and not session.loose


class _Race:
    """The leading lane, the draft that it is held against, and the lanes started from that."""

    def __init__(self, session: Session, lead: Lane) -> None:
        self.session = session
        self.lead = lead
        self.started = [lead]
        """Lanes that may not have ended yet."""
        plan, figures = session.plan, session.snapshot()
        pace = Tempo(figures.pace.ttft_s, figures.pace.tpot_s)
        self.fleet = Fleet(plan.lanes or LANES, max(plan.chunk or plan.k, 1), pace)
        self.draft_s = figures.draft_s
        """Seconds a drafted token."""
        self.draft: Drafted | None = None
        self.drafting: asyncio.Task[Proposal] | None = None
        self.by_ids = _names_ids(session)
        self.over = False
        """No further drafts: the draft failed, or lanes don't pay here."""
        self.fruitless = 0
        """Drafts in a row whose lanes all failed."""
        self.done: list[Event] = []
        """Rounds that ended since the last event."""
        self.finish: str | None = None
        self.counted: Usage | None = None
        self.switched = False
        """The leading lane is no longer the plain stream, whose server keeps ``max_tokens``."""

    async def run(self) -> AsyncGenerator[Event]:
        while True:
            self._fill()
            piece = await self._next_piece()
            for event in self._rounds():
                yield event
            if piece is None:
                break
            async for event in self._take(piece):
                yield event
            for event in self._rounds():
                yield event
            if self.session.answer.finish is not None:
                await self._settle()
                break
        self._end_draft(rejected=False)
        for event in self._rounds():
            yield event
        if not self.session.tally.rounds and not self.over:
            self.session.meter.nothing_drafted(self.session.drafter.name)
        if self.session.answer.finish is None:
            yield self._closing()

    def _rounds(self) -> list[Event]:
        done, self.done = self.done, []
        return done

    async def _settle(self) -> None:
        """The answer has ended: read on to the leading lane's own end, for its server's count."""
        self.fleet.clear()
        while (piece := await self.lead.next()) is not None:
            self.counted = piece.usage or self.counted
        self._count_prompt()

    def _count_prompt(self) -> None:
        session = self.session
        prompt = None if self.counted is None else self.counted.prompt_tokens
        if prompt is not None and session.prompt_tokens is None:
            session.prompt_tokens = prompt - self.lead.start_tokens

    # --- drafting and launching -------------------------------------------------------------

    @property
    def _scale(self) -> float:
        """Positions a token."""
        if self.by_ids:
            return 1.0
        answer, draft = self.session.answer, self.draft
        if draft is not None and draft.text:
            return max(len(draft.text) / max(draft.tokens(len(draft.text)), 1), 1.0)
        return max(len(answer.text) / answer.tokens, 1.0) if answer.tokens > 8 else 4.0

    def _fill(self) -> None:
        """Start the lanes that can be of use now, and more drafting where it runs short."""
        if self.over:
            return
        fleet, draft = self.fleet, self.draft
        fleet.drop_broken()
        if fleet.failed >= BROKEN:
            self.session.notes.append(f"no more lanes: {fleet.failed} broke before they began")
            self._stop()
            return
        scale, now = self._scale, self.session.clock()
        place = draft.place if draft is not None and draft.loose else _position(self.session)
        while draft is not None and len(fleet.lanes) < fleet.most and self._confirmed(draft):
            start = fleet.next_start(self.lead, place, now, scale)
            cut = draft.cut_from(start - draft.start)
            if cut is None or not self._pays(draft, cut):
                break
            self._launch(draft, cut)
        if self.drafting is None and not (draft is not None and draft.ended):
            self._draft_on(place, now, scale)

    def _draft_on(self, place: float, now: float, scale: float) -> None:
        """Ask for as much as all the lanes need, or, of a slow draft, for one lane's spacing."""
        session, fleet, draft = self.session, self.fleet, self.draft
        if draft is None and (self.fruitless >= FRUITLESS or session.next_k() == 0):
            self._stop()
            return
        start = fleet.next_start(self.lead, place, now, scale)
        wanted = start + scale * fleet.spacing * (fleet.most - len(fleet.lanes) + 1)
        ahead = min(int((wanted - place) / scale), MOST_AHEAD)
        if session.answer.remaining is not None:
            ahead = min(ahead, session.answer.remaining)
        missing = ahead - (0 if draft is None else int((draft.end - place) / scale))
        if draft is not None and missing < fleet.spacing:
            return
        if self.draft_s is None or self.draft_s * missing > (fleet.tempo.tpot_s or 0.0):
            missing = fleet.spacing
        after = None if draft is None else draft.begun()
        self.drafting = asyncio.create_task(
            session.draft(max(missing, 1), greedy=True, after=after, ask=False),
            name="draft for lanes",
        )
        if draft is None:
            at, before = _position(session), session.committed
            self.draft = Drafted(at, before, by_ids=self.by_ids, loose=session.loose)

    async def _next_piece(self) -> Piece | None:
        """The leading lane's next piece; meanwhile what is drafted becomes lanes."""
        coming = asyncio.ensure_future(self.lead.next())
        try:
            while self.drafting is not None and not coming.done():
                await asyncio.wait((coming, self.drafting), return_when=asyncio.FIRST_COMPLETED)
                if self.drafting.done():
                    self._drafted()
                    if self.draft is not None:
                        self._fill()  # Else it is asked again with the next piece.
            return await coming
        finally:
            if not coming.done():
                coming.cancel()
                await ended(coming)
            elif not coming.cancelled():
                coming.exception()  # Seen: whatever ended this came first.

    def _drafted(self) -> None:
        session, drafting, draft = self.session, self.drafting, self.draft
        self.drafting = None
        if drafting is None:
            return
        try:
            proposal = drafting.result()
        except DraftError as error:
            session.notes.append(f"the draft failed: {error}")
            self._stop()
            return
        if draft is None:
            return  # The answer has left it meanwhile.
        if self.by_ids and proposal.text and proposal.ids is None:
            session.notes.append("the draft's tokens are not in the target's vocabulary")
            self._stop()
            return
        draft.grow(proposal)
        self.draft_s = draft.seconds / max(draft.tokens(len(draft)), 1)
        if not len(draft):
            self.draft = None  # Nothing yet.
        elif not draft.catch_up(_tail(session, draft.start, self.by_ids)):
            self._end_draft(rejected=True)
        elif draft.used_up and not self.fleet.lanes:
            self._end_draft(rejected=False)

    def _stop(self) -> None:
        """No more drafts; lanes that are under way may still be of use."""
        self.over = True
        if self.draft is not None:
            self.draft.ended = True
            if not len(self.draft):
                self.draft = None

    def _confirmed(self, draft: Drafted) -> bool:
        """Whether the draft is more than a chance match: one that was looked up in the middle of an
        answer has to come true for a few tokens first."""
        if not draft.start or not getattr(self.session.drafter, "free", False):
            return True
        return draft.tokens(draft.matched) >= CONFIRMED

    def _pays(self, draft: Drafted, cut: int) -> bool:
        """Whether a lane from there is likely enough to be reached, given how far the draft has
        been followed."""
        session = self.session
        limit = session.answer.max_tokens
        if limit is not None and self.by_ids and draft.start + cut >= limit:
            return False
        if not session.plan.worth:
            return True
        here, there = draft.tokens(draft.matched), max(draft.tokens(cut), 1)
        survival = session.survival(there)
        reached = survival[there - 1] / (survival[here - 1] if here else 1.0)
        return reached >= session.plan.worth

    def _launch(self, draft: Drafted, cut: int) -> None:
        session = self.session
        # By text it is refined by the server's own max_tokens at the switch.
        used = draft.start + cut if self.by_ids else session.answer.tokens
        stream = session.target.stream(
            session.request,
            session.prompt,
            draft.begun(cut),
            used=used,
            purpose="lane",
            book=session.book,
            deadline=session.deadline.resumed() if session.answer.tokens else session.deadline,
            show_tokens=True,
            beyond=session.answer.tokens + draft.tokens(cut) - draft.tokens(draft.matched),
        )
        lane = Lane(stream, draft.start + cut, used, session.clock)
        draft.launched = True
        self.fleet.lanes.append(lane)
        self.started.append(lane)
        session.meter.beside = True

    # --- following the leading lane ---------------------------------------------------------

    async def _take(self, piece: Piece) -> AsyncGenerator[Event]:
        """Commit one piece of the leading lane; switch where it covers the next lane's start."""
        self.counted = piece.usage or self.counted
        if piece.extra:
            # A lane would begin after the text, without what came beside it.
            self._stop()
            self.fleet.clear()
        self.finish = piece.finish or self.finish
        self._time()
        if self.by_ids and piece.ids is not None:
            for token in piece.ids:
                yield Commit(ids=(token,))
                if self.session.answer.finish is not None:
                    return
                draft = self.draft
                if draft is not None and not draft.follow_id(token):
                    self._end_draft(rejected=True)
                elif self._at_start() and self._switch():
                    return
                self._end_used_up()
        elif piece.text or piece.extra:
            async for event in self._take_text(piece):
                yield event

    def _time(self) -> None:
        """The plain stream's own pace, while it leads."""
        lead, tempo = self.lead, self.fleet.tempo
        if self.switched or lead.ready_at is None:
            return
        if not self.session.answer.tokens:
            tempo.began(lead.ready_at - lead.started_at)
        tempo.streamed(self.session.answer.tokens, self.session.clock() - lead.ready_at)

    def _closing(self) -> Commit:
        """The end of the leading lane: its finish, and the server's count where it gave one."""
        session, missing = self.session, 0
        if self.counted is not None:
            made = self.counted.completion_tokens
            if made is not None:
                missing = self.lead.start_tokens + made - session.answer.tokens
        self._count_prompt()
        return Commit("", None, missing, self.finish or "stop", limited=False)

    def _at_start(self) -> bool:
        """Whether the leading stream is where the next lane starts. One that it has passed without
        stopping there is of no use."""
        draft, lanes = self.draft, self.fleet.lanes
        while draft is not None and lanes and lanes[0].start < draft.place:
            lanes.pop(0).cancel()
        return bool(draft is not None and lanes and lanes[0].start == draft.place)

    def _switch(self) -> bool:
        """The next lane leads from here, if it has begun to answer (settled by its first token
        alone); else it is dropped."""
        lane = self.fleet.lanes.pop(0)
        if not lane.ready or self.draft is None:
            lane.cancel()
            return False
        if lane.ready_at is not None:
            self.fleet.tempo.began(lane.ready_at - lane.started_at)
        self.lead, old = lane, self.lead
        old.cancel()
        self.counted = self.finish = None
        self.switched = self.draft.switched = True
        return True

    def _end_used_up(self) -> None:
        if self.draft is not None and self.draft.used_up and not self.fleet.lanes:
            self._end_draft(rejected=False)

    def _end_draft(self, *, rejected: bool) -> None:
        """The answer has left the draft, or come to its end."""
        draft, self.draft = self.draft, None
        self.fleet.clear()
        self.started = [lane for lane in self.started if lane is self.lead or not lane.over]
        # What is being drafted runs to its end (a drafter has one task at a time) and is dropped.
        if draft is None or not len(draft):
            return
        if draft.launched:
            self.fruitless = 0 if draft.switched else self.fruitless + 1
        drafted, accepted = draft.tokens(len(draft)), draft.tokens(draft.matched)
        self.done.append(
            RoundDone(
                drafted=drafted,
                accepted=accepted,
                judged=accepted + (rejected and accepted < drafted),
                draft_seconds=draft.seconds,
                verify_seconds=None,
                context=self.session.context,
            )
        )

    # --- by text ----------------------------------------------------------------------------

    async def _take_text(self, piece: Piece) -> AsyncGenerator[Event]:
        session = self.session
        parts = piece.texts if piece.texts and "".join(piece.texts) == piece.text else (piece.text,)
        seen = parts is piece.texts and not session.loose
        if session.loose:
            parts = tuple(_WORDS.findall(piece.text))
        extra = piece.extra
        left = list(parts)
        while left or extra:
            part = left.pop(0) if left else ""
            draft, tokens = self.draft, int(bool(part))
            if draft is not None:
                draft.settle(part)
            # Where a boundary can't be seen, what comes after it must show it.
            if part and not seen and self._at_start() and self._switch_text(part):
                return
            lanes = self.fleet.lanes
            if draft is not None and lanes and not seen and not draft.loose:
                size = lanes[0].start - draft.place
                if 0 < size < len(part):
                    left.insert(0, part[size:])
                    part, tokens = part[:size], 0
            if draft is not None and not draft.follow(part):
                self._end_draft(rejected=True)
            yield Commit(part, None, tokens, None, extra, limited=self.switched)
            extra = None
            if session.answer.finish is not None:
                return
            if seen and self._at_start() and self._switch_text(None):
                return
            self._end_used_up()

    def _switch_text(self, ahead: str | None) -> bool:
        """As :meth:`_switch`. Where the boundary was not seen, ``ahead`` is how the leading lane
        goes on: both lanes must do so with a space."""
        session, lane = self.session, self.fleet.lanes[0]
        if ahead is not None and lane.ready:
            both = ahead.startswith(" ") and lane.buffered_text().startswith(" ")
            if not both:
                self.fleet.lanes.pop(0).cancel()
                return False
        lane.start_tokens = session.answer.tokens
        if not self._switch():
            return False
        if session.loose:
            session.loosen(Exactness.HEURISTIC, LOOSE)
        session.loosen(Exactness.BOUNDED, RETOKENISED)
        return True

    async def aclose(self) -> None:
        """End every lane and the draft; idempotent."""
        for lane in self.started:
            lane.cancel()
        under_way: list[asyncio.Task[Any]] = [lane.reading for lane in self.started]
        if self.drafting is not None:
            self.drafting.cancel()
            under_way.append(self.drafting)
        await ended(*under_way)


def _tail(session: Session, start: int, by_ids: bool) -> tuple[int, ...] | str:
    """What has been committed since position ``start``."""
    if by_ids:
        return tuple((session.answer.ids or [])[start:])
    return session.answer.text[start:]

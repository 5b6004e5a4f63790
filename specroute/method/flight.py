"""Scoring rounds kept in flight: the next one leaves before the last one's answer is back.

The draft runs on from its own unjudged end, and each further round carries it: a guess of the token
that would follow the round before is a drafted token like any other, and that round's own bonus
token is then not used. At T = 0 it is: there it is the target's argmax, so it settles the guess.

What log-probabilities decide is asked for from the first undecided token on, so that a later answer
covers the earlier ones, whichever comes first. What the target's own draws decide is asked for
once only, in order. Either way each position is judged once, with one coin, by an answer that was
chosen without looking at it. A rejection cancels every round that was built on it.

Knows when a round leaves and which answer is judged next; judging is ``score``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specroute.candidates import Judge
from specroute.context import Committed
from specroute.draft.base import Distribution, Proposal
from specroute.errors import DraftError, ProviderError
from specroute.http.unbroken import ended
from specroute.target.view import BadEvidence, View

if TYPE_CHECKING:
    from specroute.session import Session

BUILT_ON = "cancelled: an earlier round refused what it was built on"


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer, without what is decided already. ``view`` is ``None`` where there was nothing to
    propose."""

    proposal: Proposal
    view: View | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0


@dataclass(slots=True)
class _Flight:
    """One round under way: it covers the answer's tokens from ``start`` to ``end``."""

    start: int
    end: int
    task: asyncio.Task[View]
    draft_s: float
    left_at: float


@dataclass(frozen=True, slots=True)
class Settled:
    """What a judged round was to those in flight."""

    goes_on: bool
    """All of it stands and the next round has guessed what follows: the target's own token is not
    to be committed."""
    start: int
    """Drafted tokens accepted before it in the same run."""
    refuted: bool = False
    """All of it stands, and the target's own token is another than the guess: that was refused."""


ALONE = Settled(False, 0)
"""A round with none in flight after it."""


class Flights:
    """Up to ``depth`` rounds of one request, by token ids."""

    def __init__(self, session: Session, depth: int) -> None:
        self._session = session
        self._depth = depth
        self._ids: list[int] = []
        """The answer as it would be: what is committed, and the draft."""
        self._q: dict[int, Distribution | None] = {}
        """Of drawn tokens, by their place in the answer."""
        self._flights: list[_Flight] = []
        """In the order of their ends."""
        self._ending: list[asyncio.Task[View]] = []
        self._feeding: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failed: DraftError | None = None
        self._feeds = False
        """Rounds are being drafted and sent."""
        self._fed = False
        """There is nothing more to send for what is under way."""
        self._run = 0
        """Drafted tokens accepted since the target last had its own way."""

    # --- what score asks for ----------------------------------------------------------------

    async def next(self) -> Scored:
        """The next answer to judge; meanwhile further rounds leave.

        Raises what a draft or a scoring request raises, once nothing else is under way.
        """
        if not (self._fed and self._flights):
            self._fed = False
        if not self._feeds and not self._fed:
            self._failed = None
            before, self._feeds = self._feeding, True
            self._feeding = asyncio.create_task(self._feed(before), name="rounds in flight")
        while True:
            flight = self._landed()
            if flight is not None:
                return self._scored(flight)
            if not self._flights and not self._feeds:
                if self._failed is not None:
                    raise self._failed
                return Scored(Proposal(""))
            self._changed.clear()
            await self._changed.wait()

    def settled(self, accepted: int, drafted: int, last: Sequence[int | str]) -> Settled:
        """A round was judged: ``accepted`` of its ``drafted`` tokens stand, and ``last`` follows.

        Where the round ends the draft's way, what was built on it is cancelled.
        """
        end = len(self._session.answer.ids or ()) + accepted
        guessed = accepted == drafted and end < len(self._ids) and bool(self._flights)
        start, self._run = self._run, self._run + accepted
        greedy = self._session.request.greedy
        if guessed and (not greedy or not last or last[0] == self._ids[end]):
            return Settled(True, start)  # The next round goes on from the guess.
        self.clear()
        return Settled(False, start, refuted=guessed)

    def clear(self) -> None:
        """Begin to end everything under way: its lines will be in the book."""
        if self._feeding is not None:
            self._feeding.cancel()
        self._feeds = self._fed = False
        for flight in self._flights:
            flight.task.cancel()
        self._ending = [task for task in self._ending if not task.done()]
        self._ending += [flight.task for flight in self._flights]
        self._flights, self._ids, self._q = [], [], {}
        self._run = 0

    async def aclose(self) -> None:
        """End everything; idempotent."""
        self.clear()
        tasks: list[asyncio.Task[View] | asyncio.Task[None]] = [*self._ending]
        if self._feeding is not None:
            tasks.append(self._feeding)
        if tasks:
            await ended(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # It had nobody left to tell.

    # --- rounds -----------------------------------------------------------------------------

    async def _feed(self, before: asyncio.Task[None] | None) -> None:
        """Draft and send rounds while fewer than ``depth`` are under way. A drafter has one task at
        a time: the one ``before`` has to be gone."""
        me = asyncio.current_task()
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            await self._send_rounds()
        except DraftError as error:
            self._failed = error
        finally:
            if me is self._feeding:
                self._feeds, self._fed = False, True
                self._changed.set()

    async def _send_rounds(self) -> None:
        session = self._session
        while session.answer.finish is None:
            if len(self._flights) >= self._depth:
                self._changed.clear()
                await self._changed.wait()
                continue
            ids = list(session.answer.ids or ())
            if len(self._ids) < len(ids):
                self._ids = ids
            k = session.next_k()
            remaining = session.answer.remaining
            if remaining is not None:
                k = min(k, remaining - (len(self._ids) - len(ids)) - 1)
            if k < 1:
                return
            started = session.clock()
            proposal = await self._draft(k)
            if not proposal.ids:
                if proposal.text and not self._flights:
                    raise DraftError("the draft's tokens are not in the target's vocabulary")
                return
            self._send(proposal, session.clock() - started)
            if proposal.ended:
                return

    async def _draft(self, k: int) -> Proposal:
        session = self._session
        greedy = session.judge is Judge.DRAWS
        ahead = self._ids[len(session.answer.ids or ()) :]
        if not ahead:
            return await session.draft(k, greedy=greedy)
        vocabulary = session.target.learned.vocabulary
        assert vocabulary is not None
        text = session.answer.text + vocabulary.decode(ahead)
        after = Committed(text, tuple(self._ids))
        return await session.draft(k, greedy=greedy, after=after, ask=False)

    def _send(self, proposal: Proposal, draft_s: float) -> None:
        session = self._session
        begins = len(self._ids)
        self._ids += proposal.ids or ()
        if proposal.q is not None:
            self._q.update(enumerate(proposal.q, begins))
        decided = len(session.answer.ids or ())
        start = begins if session.judge is Judge.DRAWS else decided
        draft, before = tuple(self._ids[start:]), Committed("", tuple(self._ids[:start]))
        n = 1 if session.judge is Judge.ARGMAX else session.top_n
        task = asyncio.create_task(
            session.score(draft, logprobs=n, after=before), name="a round in flight"
        )
        task.add_done_callback(self._arrived)
        self._flights.append(_Flight(start, len(self._ids), task, draft_s, session.clock()))

    def _arrived(self, task: asyncio.Task[View]) -> None:
        if not task.cancelled():
            task.exception()  # Looked at, whether or not it is ever judged.
        self._changed.set()

    def _landed(self) -> _Flight | None:
        """The answer to judge next. Of log-probabilities any that is there, the one that covers
        most; of draws the first round's. One that failed counts only where no other is left."""
        draws = self._session.judge is Judge.DRAWS
        wanted = self._flights[:1] if draws else self._flights
        good = [f for f in wanted if f.task.done() and f.task.exception() is None]
        if good:
            flight = good[-1]
        elif self._flights and (draws or all(f.task.done() for f in self._flights)):
            if not wanted[0].task.done():
                return None
            flight = wanted[0]
        else:
            return None
        covered = [f for f in self._flights if f.end <= flight.end and f is not flight]
        for other in covered:
            other.task.cancel()
            self._ending.append(other.task)
        self._flights = [f for f in self._flights if f.end > flight.end]
        self._changed.set()
        return flight

    def _scored(self, flight: _Flight) -> Scored:
        """Raises what its request raised."""
        try:
            view = flight.task.result()
        except (BadEvidence, ProviderError):
            self.clear()
            raise
        decided = len(self._session.answer.ids or ())
        skip = decided - flight.start
        ids = tuple(self._ids[decided : flight.end])
        # A token keeps its q where later ones, of another drafter, have none: what becomes of it
        # may not depend on what was drafted after it.
        q = tuple(self._q.get(i) for i in range(decided, flight.end))
        for i in range(decided):
            self._q.pop(i, None)
        proposal = Proposal("", ids, q if any(each is not None for each in q) else None)
        view = replace(view, positions=view.positions[skip:], samples=view.samples[skip:])
        return Scored(proposal, view, flight.draft_s, view.seconds)

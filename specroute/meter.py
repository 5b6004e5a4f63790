"""What one request tells the measurements, and what it has seen for itself.

Knows how a round, a draw and a stream are entered, and the figures as they were when the request
began. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

from specroute.events import RoundDone
from specroute.ledger import Price
from specroute.measure import Acceptance, AcceptanceCounts, Mean, Measurements, Snapshot
from specroute.measure.crowd import Crowding, Pulse
from specroute.measure.turns import Turns
from specroute.target.stream import Piece
from specroute.target.timing import StreamPace
from specroute.types import Method, Usage


@dataclass(slots=True, eq=False)
class Meter:
    """``how``: what its rounds are measured as (who judges them, or the method)."""

    measurements: Measurements
    target: str
    """``provider:model``."""
    traffic: str
    how: str
    prompt_per_token: bool = False
    wall: Callable[[], float] = time.time
    beside: bool = False
    """Other streams ran beside its own for the same request: what they take from the target, its
    pace is short of."""
    clock: Callable[[], float] = time.perf_counter
    """Of the crowd: the same for all requests."""
    rounds: int = 0
    log: list[tuple[int, int, int, float | None, float]] = field(default_factory=list)
    """Of each round: drafted, accepted, judged, scoring seconds (draws included), drafting ones."""
    _own: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    _verify: Mean = field(default_factory=lambda: Mean(0.8, most=2))
    _draft: Mean = field(default_factory=lambda: Mean(0.8, most=2))
    _figures: dict[str, Snapshot] = field(default_factory=dict)
    _drafters: set[str] = field(default_factory=set)
    """Those whose rounds were measured."""
    _in_rounds: bool = False
    _read: bool = False
    """The target has read the prompt."""
    _draws: int = 0
    _draws_s: float = 0.0

    @property
    def own(self) -> Acceptance:
        """This request's own rounds."""
        return self._own.frozen()

    @property
    def verify_s(self) -> float | None:
        """Mean of its own scoring requests, with what the rules drew."""
        return self._verify.value

    @property
    def draft_s(self) -> float | None:
        """Mean per token that was drafted for it."""
        return self._draft.value

    def figures(
        self, drafter: str, context: int, price: Price | None, draft: Price | None = None
    ) -> Snapshot:
        """The figures as they were when this drafter was first asked for the request, after
        ``context`` tokens: what it has seen since is ``own``, and would else count twice. The crowd
        is as it is now."""
        found = self._figures.get(drafter)
        if found is None:
            found = self.measurements.snapshot(
                self.target, drafter, self.traffic, self.how, prompt_tokens=context
            )
            each = self.prompt_per_token
            found = priced(replace(found, context=context, prompt_per_token=each), price)
            found = self._figures[drafter] = draft_priced(found, draft)
        crowd = self.measurements.crowd(self.target, drafter, speculates=self._in_rounds)
        return found if found.crowd is crowd else replace(found, crowd=crowd)

    # --- among others -----------------------------------------------------------------------

    @property
    def _crowd(self) -> Crowding:
        return self.measurements.targets[self.target].crowd

    @contextmanager
    def in_rounds(self, yes: bool = True) -> Iterator[None]:
        """Meanwhile the request makes scoring rounds, or (not ``yes``) has a stream between
        them."""
        if yes is self._in_rounds:
            yield
            return
        self._in_rounds = yes
        self._crowd.speculates(self.clock(), yes)
        try:
            yield
        finally:
            self._in_rounds = not yes
            self._crowd.speculates(self.clock(), not yes)

    @contextmanager
    def scoring(self, context: int, drafted: int) -> Iterator[Callable[[Usage], None]]:
        """Meanwhile a scoring request is under way; what to tell of its usage."""
        crowd, again = self._crowd, self._read
        tokens, sequences = float(drafted), 1
        if again:  # The request's prompt was counted when it began.
            tokens += context * (1.0 if crowd.rereads is None else crowd.rereads)
        self._read = True
        if self.prompt_per_token:
            tokens, sequences = tokens * (drafted + 1), drafted + 1
        crowd.scoring(self.clock(), tokens, sequences)

        def used(usage: Usage) -> None:
            if again and usage.prompt_tokens:
                new = usage.prompt_tokens - (usage.cached_tokens or 0) - drafted
                known = max(usage.prompt_tokens - drafted, 1)
                crowd.reread(min(max(new / known, 0.0), 1.0))

        try:
            yield used
        finally:
            crowd.scored(self.clock(), sequences)

    @contextmanager
    def drafting(self, drafter: str) -> Iterator[list[int]]:
        """Meanwhile a draft is under way; how many tokens it has is put into the list."""
        crowd, drafted = self.measurements.drafts[drafter].crowd, [0]
        mark = crowd.begin(self.clock())
        try:
            yield drafted
        finally:
            crowd.end(self.clock(), drafted[0], mark)

    async def heard(self, stream: AsyncGenerator[Piece]) -> AsyncGenerator[Piece]:
        """One of the target's own streams as it is: between rounds, or after them."""
        pulse = Pulse(self._crowd, self.clock)
        try:
            with self.in_rounds(False):
                async with aclosing(stream):
                    async for piece in stream:
                        if piece.text or piece.texts:
                            pulse(1)
                        yield piece
        finally:
            pulse.end()

    def drew(self, seconds: float) -> None:
        """A rule asked the target for a token."""
        self._draws += 1
        self._draws_s += seconds

    def round(self, done: RoundDone, drafter: str, temperature: float) -> None:
        """Enter one round; ``temperature``: the draft's, 0 for a greedy one."""
        draws, draws_s = self._draws, self._draws_s
        self._draws, self._draws_s = 0, 0.0
        self.rounds += 1
        at = self.wall()
        self._own.add(done.accepted, done.judged, done.start)
        if self._in_rounds:
            self._crowd.committed(done.accepted + 1)
        verify_s = done.verify_seconds
        self.log.append((done.drafted, done.accepted, done.judged, verify_s, done.draft_seconds))
        if done.predicted:
            self.measurements.predicted(
                self.target,
                drafter,
                self.traffic,
                drafted=done.drafted,
                accepted=done.accepted,
                tpot_s=done.tpot_s,
                at=at,
            )
            return
        if verify_s is not None:
            self._verify.add(verify_s)
            verify_s = max(verify_s - draws_s, 1e-6)
        # The first draft of a request also reads its prompt: it says nothing of later ones.
        draft_s = done.draft_seconds if self.rounds > 1 else None
        if done.drafted and draft_s is not None:
            self._draft.add(draft_s / done.drafted, done.drafted)
        elif done.drafted:
            self.measurements.first_draft(
                drafter, done.draft_seconds, context=done.context, drafted=done.drafted, at=at
            )
        self.measurements.round(
            self.target,
            drafter,
            self.traffic,
            drafted=done.drafted,
            accepted=done.accepted,
            judged=done.judged,
            draft_s=draft_s,
            verify_s=verify_s,
            how=self.how,
            context=done.context,
            draws=draws,
            draws_s=draws_s,
            temperature=temperature or None,
            start=done.start,
            answer=self,
            at=at,
        )
        self._drafters.add(drafter)

    def over(self) -> None:
        """The answer has ended, whatever ended it."""
        for drafter in self._drafters:
            self.measurements.over(self.target, drafter, self.traffic, self, self.how)
        self._drafters.clear()

    def nothing_drafted(self, drafter: str) -> None:
        """No drafter had anything to propose: as good as a draft refused at once, or as a
        prediction of which the server took nothing, at plain's pace."""
        if self.how == Method.PREDICT:
            seen = self.measurements.snapshot(self.target, drafter, self.traffic, self.how)
            self.measurements.predicted(
                self.target,
                drafter,
                self.traffic,
                drafted=1,
                accepted=0,
                tpot_s=seen.pace.tpot_s,
                at=self.wall(),
            )
            return
        self.measurements.round(
            self.target,
            drafter,
            self.traffic,
            drafted=0,
            accepted=0,
            judged=1,
            draft_s=None,
            verify_s=None,
            how=self.how,
            at=self.wall(),
        )

    def paced(self, pace: StreamPace, context: int) -> None:
        """One of the target's own streams, from ``context`` tokens on."""
        self.measurements.pace(
            self.target,
            self.traffic,
            ttft_s=pace.ttft_s,
            tpot_s=None if self.beside else pace.tpot_s,
            tokens=pace.tokens,
            context=context,
            in_flight=self.measurements.others(self.target),
            at=self.wall(),
        )


def priced(snapshot: Snapshot, price: Price | None) -> Snapshot:
    """``snapshot`` with a price's dollars per token, at its prompt's length."""
    if price is None:
        return snapshot
    price = price.at(snapshot.prompt_tokens)
    cached = price.cached_input
    return replace(
        snapshot,
        usd_in=price.input / 1e6,
        usd_out=price.output / 1e6,
        usd_cached=None if cached is None else cached / 1e6,
    )


def draft_priced(snapshot: Snapshot, price: Price | None) -> Snapshot:
    """``snapshot`` with what a draft's own provider bills per token."""
    if price is None:
        return snapshot
    price = price.at(snapshot.context)
    again = price.input if price.cached_input is None else price.cached_input
    return replace(
        snapshot,
        usd_draft_in=price.input / 1e6,
        usd_draft_out=price.output / 1e6,
        usd_draft_again=again / 1e6,
    )


def look(turns: Turns) -> None:
    """Ask the running loop for a turn, to see how long it takes."""
    if turns.asks(time.perf_counter()):
        asyncio.get_running_loop().call_soon(lambda: turns.came(time.perf_counter()))

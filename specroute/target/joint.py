"""Scoring rounds of many requests that leave for one target in one request.

Rounds that become ready in the same turn of the event loop and are alike but for their prompts go
together; nothing waits longer than to the end of that turn, so a lone round leaves as it would
have. Knows who is ready, who is still there and whose turn it is; ``dialects.joining`` knows what a
shared request looks like, and ``scoring`` what to do with a round that was left out.

A shared request may take as long as any of its rounds may, and each round keeps its own: one that
runs out of time, or whose caller leaves, goes without the others noticing. What a provider says of
itself (429, 503, no connection) is the answer to every round in it, as it would have been to each.
What may be said of the list (another 4xx, 500, an answer that is none) leaves the rounds to ask by
themselves, and a list that was refused (4xx) is not sent again, nor one of more than half its
length; after :data:`REFUSALS` such answers in a row, or one from which somebody's part is missing,
nothing is sent jointly any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING

from specroute.errors import (
    BadAnswer,
    ConnectFailed,
    ErrorInBody,
    LimitReached,
    ProviderError,
    StatusError,
)
from specroute.http.deadline import Deadline
from specroute.http.watch import Watch
from specroute.limits.purse import current
from specroute.target.dialects import joining
from specroute.target.dialects.base import Request
from specroute.target.learned import says_nothing
from specroute.types import TargetRef, Usage

if TYPE_CHECKING:
    from specroute.http.client import HttpClient, JsonReply

log = logging.getLogger("specroute")

MOST_PROMPTS = 64
MOST_BYTES = 256 * 1024
"""Of one request's prompts. The answer is longer than they are, and is read in one piece."""
REFUSALS = 3


class LeftOut(ProviderError):
    """A shared request did not answer this round, which may be asked by itself."""

    def __init__(self, message: str, *, provider: str, outcome: str, usage: Usage) -> None:
        super().__init__(message, provider=provider)
        self._outcome = outcome
        self.usage = usage
        """Its share of what the shared request is billed."""

    @property
    def outcome(self) -> str:
        return self._outcome


class Joint:
    """One target's shared requests. Belongs to one event loop."""

    def __init__(self, http: HttpClient, ref: TargetRef, what: str = "scoring rounds") -> None:
        """``what`` is in them, for the log."""
        self._http = http
        self._what = what
        self._ref = ref
        self._ready: dict[object, list[Seat]] = {}
        self._refusals = 0
        self._most_rounds = self._most_bytes = inf
        """Of one request: half of what the server was seen to refuse."""
        self.off = ""
        """Why nothing is sent jointly any more."""
        self.requests = 0
        """Shared requests that were sent,"""
        self.rounds = 0
        """and the rounds in them."""

    async def seat(self, request: Request, deadline: Deadline, purpose: str) -> Seat | None:
        """A place in a shared request; ``None``: nobody else is ready, or it can't be shared.

        A request with a budget of its own (``max_cost_usd``) leaves by itself: what a call may
        come to is held back in the purse of the one that it is made for.
        """
        alike = None if self.off or current.get() is not None else joining.alike(request)
        if alike is None:
            return None
        kind = (*alike, purpose)
        loop = asyncio.get_running_loop()
        seat = Seat(request, deadline, purpose, loop)
        ready = self._ready.get(kind)
        if ready is None:
            ready = self._ready[kind] = []
            loop.call_soon(self._leave, kind)
        ready.append(seat)
        try:
            return seat if await seat.company else None
        except BaseException:
            seat.answer.cancel()
            raise

    def distrust(self, reason: str) -> None:
        """What came back jointly can't be right: nothing is sent so again."""
        if not self.off:
            self.off = reason
            log.info("%s: %s share no request any more: %s", self._ref, self._what, reason)

    def _leave(self, kind: object) -> None:
        seats = [seat for seat in self._ready.pop(kind) if not seat.company.done()]
        for together in _cut(seats, self._most_rounds, min(MOST_BYTES, self._most_bytes)):
            if len(together) == 1 or self._send(together) is None:
                for seat in together:
                    seat.company.set_result(False)
                continue
            for seat in together:
                seat.company.set_result(True)

    def _send(self, seats: Sequence[Seat]) -> asyncio.Task[None] | None:
        task = self._http.supervisor.spawn(self._ask(seats), name="joint score", apart=True)
        if task is None:
            return None

        def left(_: object) -> None:
            if all(seat.answer.cancelled() for seat in seats):
                task.cancel()

        for seat in seats:
            seat.answer.add_done_callback(left)
        return task

    async def _ask(self, seats: Sequence[Seat]) -> None:
        requests = [seat.request for seat in seats]
        shared = joining.joined(requests)
        self.requests += 1
        self.rounds += len(seats)
        try:
            reply = await self._http.post_json(
                shared.path,
                shared.payload,
                _latest([seat.deadline for seat in seats]),
                root=shared.root,
                listed=shared.listed,
                purpose=seats[0].purpose,
                model=self._ref.model,
            )
        except ProviderError as error:
            self._failed(seats, error)
            return
        except BaseException as error:
            # Whatever refused it here (a store) is asked again by each; and who closes the client
            # must not look like each caller's own cancellation.
            gone = isinstance(error, asyncio.CancelledError)
            said = "the client was closed while this request was under way"
            name = self._http.provider.name
            for seat in seats:
                cause = ConnectFailed(f"{name}: {said}", provider=name) if gone else error
                seat.fail(cause if gone else self._left_out(cause, Usage()))
            if gone:
                raise
            return
        self._answered(seats, reply, joining.parted(reply.data, requests))

    def _answered(
        self, seats: Sequence[Seat], reply: JsonReply, parts: Sequence[joining.Part]
    ) -> None:
        missing = sum(part.data is None for part in parts)
        if missing:
            self.distrust(f"{missing} of {len(parts)} rounds in a request were not answered")
        else:
            self._refusals = 0
        for seat, part in zip(seats, parts, strict=True):
            if part.data is None:
                unanswered = BadAnswer(
                    f"{self._http.provider.name}: one prompt of a list was not answered",
                    provider=self._http.provider.name,
                )
                seat.fail(self._left_out(unanswered, part.usage))
            elif not seat.answer.done():
                seat.answer.set_result((part.data, reply))

    def _failed(self, seats: Sequence[Seat], error: ProviderError) -> None:
        alone = _of_the_list(error)
        if alone and not isinstance(error, LimitReached):
            self._refusals += 1
            if isinstance(error, StatusError) and error.status < 500:
                # Shorter ones may well be taken: were only refusals in a row counted, a server of
                # short lists would be asked in vain by every crowd.
                self._most_rounds = max(len(seats) // 2, 2)
                self._most_bytes = sum(joining.size_of(seat.request) for seat in seats) // 2
                said = f"{len(seats)} in one request were refused"
                name = self._http.provider.name
                log.info("%s: %s: %s, fewer go together now", name, self._what, said)
            if self._refusals >= REFUSALS:
                self.distrust(f"{REFUSALS} in a row failed, the last: {error}")
        for seat in seats:
            seat.fail(self._left_out(error, Usage()) if alone else error)

    def _left_out(self, error: BaseException, usage: Usage) -> LeftOut:
        name = self._http.provider.name
        outcome = error.outcome if isinstance(error, ProviderError) else type(error).__name__
        return LeftOut(str(error), provider=name, outcome=outcome, usage=usage)


class Seat:
    """One round's place among those that leave in this turn."""

    __slots__ = ("answer", "company", "deadline", "purpose", "request")

    def __init__(
        self,
        request: Request,
        deadline: Deadline,
        purpose: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.request = request
        self.deadline = deadline
        self.purpose = purpose
        self.company: asyncio.Future[bool] = loop.create_future()
        """Whether others go along; known at the end of the turn."""
        self.answer: asyncio.Future[tuple[dict[str, object], JsonReply]] = loop.create_future()

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    async def reply(self, provider: str) -> tuple[dict[str, object], JsonReply]:
        """This round's part, and the answer to all. Raises :class:`LeftOut`, and what
        :meth:`HttpClient.post_json` raises, by this round's own deadline."""
        left = min(self.deadline.remaining("first_token"), self.deadline.remaining("total"))
        try:
            async with asyncio.timeout(max(left, 0.0) if isfinite(left) else None):
                return await self.answer
        except TimeoutError as error:
            raise Watch(self.deadline, provider).exceeded(self.deadline.limit(None)[1]) from error


def _latest(deadlines: Sequence[Deadline]) -> Deadline:
    """One that ends when the last of each limit does: of two rounds one may have more time in all,
    and the other more to its first token."""
    last = max(deadlines, key=lambda each: each.remaining("total"))
    first = max(each.remaining("first_token") for each in deadlines)
    if last.remaining("first_token") >= first:
        return last
    lasts = replace(
        last.timeouts,
        connect=max(each.timeouts.connect for each in deadlines),
        first_token=first,
        stall=max(each.timeouts.stall for each in deadlines),
        total=last.remaining("total"),
    )
    return Deadline(lasts, last.clock)


def _cut(seats: Sequence[Seat], most_rounds: float, most_bytes: float) -> Iterator[list[Seat]]:
    """Those that are ready, within the bounds of one request."""
    together: list[Seat] = []
    prompts = size = 0
    for seat in seats:
        own, bytes_ = len(joining.prompts_of(seat.request)), joining.size_of(seat.request)
        full = len(together) >= most_rounds or prompts + own > MOST_PROMPTS
        if together and (full or size + bytes_ > most_bytes):
            yield together
            together, prompts, size = [], 0, 0
        together.append(seat)
        prompts, size = prompts + own, size + bytes_
    if together:
        yield together


def _of_the_list(error: ProviderError) -> bool:
    """Whether a failure may be the list's and not its host's: each round could fare better alone.
    A limit of the config may have room for one where it has none for all."""
    if isinstance(error, StatusError):
        return error.status in (500, 501) or not says_nothing(error.status)
    return isinstance(error, ErrorInBody | BadAnswer | LimitReached)

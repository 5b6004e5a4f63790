"""From a session to what the caller receives: a stream of chunks or one JSON answer, and a report.

Knows how the loop runs in a task of its own, how far it may run ahead of its reader, and that the
report is final before ``[DONE]`` goes out. Knows no method and no policy.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from specroute.engine import NothingCommitted, speculate
from specroute.errors import ProviderError, StreamAbandoned, StreamTruncated
from specroute.http import wire
from specroute.http.chunks import Encoder
from specroute.http.supervisor import Supervisor
from specroute.ledger import booked
from specroute.reporting import FIELD, ReportHandle, to_wire
from specroute.request import CHAT
from specroute.session import Session
from specroute.types import Exactness, Report, Usage

RUN_AHEAD = 64
"""Commits that may wait for a reader before drafting and scoring stop."""


class Delivery:
    """One answer on its way. ``start`` returns once there is something to hand over."""

    def __init__(self, session: Session, handle: ReportHandle, supervisor: Supervisor) -> None:
        self.session = session
        self.handle = handle
        self._supervisor = supervisor
        request = session.request
        self._encoder = Encoder(
            chat=request.path == CHAT,
            answer_id=handle.report.id,
            model=session.target.ref.model,
            created=int(time.time()),
            include_usage=request.stream and request.include_usage,
        )
        self._first_at: float | None = None
        self._last_at = 0.0
        self._stalled_s = 0.0
        """Seconds that it took the answer to go on after a fault of the target's."""
        self._outbox = Outbox(session.deadline.timeouts.idle)
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._text: list[str] = []
        self._extra: dict[str, Any] = {}
        """Other fields of the message (reasoning, refusal …), of an answer that is not streamed."""

    async def start(self) -> bytes | SpeculativeStream:
        """Run until the first text (streams) or to the end, and give what the reply's body is.

        Raises :class:`NothingCommitted` and provider errors from before the first text.
        """
        self.handle.live = self.live
        self._task = self._supervisor.spawn(self._run(), name="speculation")
        if self._task is None:
            raise NothingCommitted("the client is closed")
        self._task.add_done_callback(self._over)
        try:
            await asyncio.shield(self._begun)
        except asyncio.CancelledError:
            if not self._task.done():
                # Cancelled again it leaves at once: the calls that are ended here are booked all
                # the same, before the report is final.
                self.handle.held = True
                self._task.cancel()
                await asyncio.wait([self._task])
            raise
        if self.session.request.stream:
            return SpeculativeStream(self._outbox, self._task)
        return self._outbox.take_all()

    async def _run(self) -> None:
        session, stream = self.session, self.session.request.stream
        try:
            async with aclosing(speculate(session)) as deltas:
                async for delta in deltas:
                    if not (delta.text or delta.extra):
                        continue
                    before, self._last_at = self._last_at, session.deadline.clock()
                    if self._first_at is None:
                        self._first_at = self._last_at
                    elif session.resumed and not self._stalled_s:
                        self._stalled_s = self._last_at - before
                    if stream:
                        await self._outbox.put(self._encoder.text(delta.text, delta.extra))
                        self._begin()
                    else:
                        self._text.append(delta.text)
                        _merge(self._extra, delta.extra or {})
            await session.aclose()
            self._end()
        except (NothingCommitted, ProviderError) as error:
            await session.aclose()
            if self._begun.done():
                self._close(error)
                self._outbox.fail(error)
            else:
                self.handle.live = None
                self._begun.set_exception(error)
                self._begun.exception()  # Its waiter may be gone: it was cancelled as well.
        except BaseException as error:
            await session.aclose()
            self._close(error)
            shown: BaseException = error
            if isinstance(error, asyncio.CancelledError):  # Not its reader's, who has left.
                shown = interrupted(session.target.ref.provider)
            self._outbox.fail(shown)
            if not self._begun.done():
                self._begun.set_exception(shown)
                self._begun.exception()
            if not isinstance(error, asyncio.CancelledError | StreamAbandoned):
                raise
        finally:
            self._outbox.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        """The loop has ended, however it came to that: it may have been cancelled again while it
        tidied up, or before it began."""
        if not (task.cancelled() or self.handle.held):
            return
        if not self.handle.done:
            self._close(asyncio.CancelledError())
        shown = interrupted(self.session.target.ref.provider)
        self._outbox.fail(shown)
        self._outbox.close()
        if not self._begun.done():
            self._begun.set_exception(shown)
            self._begun.exception()

    def _begin(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)

    def _end(self) -> None:
        """The answer is there in full: settle the report, then let its end go out."""
        session, encoder = self.session, self._encoder
        report = self._report(complete=True, error=None)
        self._finish(report)
        usage = Usage(report.prompt_tokens, report.completion_tokens)
        finish = session.answer.finish or "stop"
        if session.request.stream:
            self._outbox.add(encoder.finish(finish))
            tail = encoder.usage(usage)
            if tail:
                self._outbox.add(tail)
            self._outbox.add(wire.DONE)
        else:
            whole: dict[str, Any] = encoder.whole("".join(self._text), finish, usage, self._extra)
            whole[FIELD] = to_wire(self.handle.report)
            self._outbox.add(wire.dumps(whole))
        self._begin()

    def _close(self, error: BaseException) -> None:
        """The answer ended early: the report says how."""
        if isinstance(error, asyncio.CancelledError):
            said = "closed by the caller"
        else:
            said = str(error) or type(error).__name__
        self._finish(self._report(complete=False, error=said))

    def _finish(self, report: Report) -> None:
        self.handle.held = False
        self.handle.finish(report)

    @property
    def beyond_s(self) -> float:
        """Seconds that were nobody's plan's doing: the reader let the stream wait, or the target
        broke off."""
        return self._outbox.waited_s + self._stalled_s

    def live(self) -> Report:
        """The report as it stands."""
        return self._report(complete=False, error=None)

    def _report(self, *, complete: bool, error: str | None) -> Report:
        session = self.session
        answer, tally, now = session.answer, session.tally, session.deadline.clock()
        start, first = session.deadline.started, self._first_at
        tokens = answer.tokens
        if answer.ended_by_token and session.target.capabilities.eos_in_usage is False:
            tokens -= 1
        tpot = None
        if first is not None and tokens > 1:
            tpot = (self._last_at - first) / (tokens - 1)
        known = _prompt_tokens(session)
        lines = session.book.with_prompts(session.request.about_tokens if known is None else known)
        return replace(
            booked(self.handle.base, lines, session.price_of),
            target=str(session.target.ref),
            method=session.plan.method.value,
            exactness=_label(session).value,
            exactness_reason=session.exactness_reason,
            expected_agreement=getattr(session.lossy, "agreement", None)
            if session.tally.rounds
            else None,
            plan_reason=session.plan.reason,
            notes=(*self.handle.base.notes, *session.notes),
            complete=complete,
            finish_reason=answer.finish,
            error=error,
            drafter=session.plan.drafter and session.drafter.name,
            rounds=tally.rounds,
            drafted=tally.drafted,
            accepted=tally.accepted,
            rejected=tally.rejected,
            ttft_s=None if first is None else first - start,
            tpot_s=tpot,
            total_s=now - start if complete or error else None,
            draft_s=tally.draft_s,
            prompt_tokens=known,
            completion_tokens=tokens,
        )


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Deltas of one field: texts join, lists follow each other, anything else replaces."""
    for key, value in extra.items():
        before = into.get(key)
        joins = isinstance(value, str | list) and type(before) is type(value)
        into[key] = before + value if joins else value


def _label(session: Session) -> Exactness:
    if session.exactness is Exactness.EXACT and session.request.greedy:
        return Exactness.EXACT_GREEDY
    return session.exactness


def _prompt_tokens(session: Session) -> int | None:
    """What a plain call's usage would show."""
    if session.prompt.ids is not None:
        return len(session.prompt.ids)
    if session.prompt_tokens is not None:
        return session.prompt_tokens
    own = ("plain", "predict", "hedge")  # The caller's own request, as it is.
    counts = (a.usage.prompt_tokens for a in session.book.attempts if a.purpose in own)
    return next((count for count in counts if count is not None), None)


def interrupted(provider: str) -> StreamTruncated:
    """What a reader is told whose answer was ended from elsewhere: it is not complete."""
    return StreamTruncated(
        "the client was closed before the answer was complete", provider=provider
    )


class Outbox:
    """Chunks between the loop and its reader, at most ``RUN_AHEAD`` of them.

    A writer that waits longer than ``idle`` seconds (0: for ever) for its reader gives up with
    :class:`StreamAbandoned`.
    """

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._closed = False
        self._left = False
        self.waited_s = 0.0
        """Seconds for which the writer has waited."""

    async def put(self, chunk: bytes) -> None:
        if len(self._chunks) >= RUN_AHEAD:
            began = time.perf_counter()
            try:
                await self._room()
            finally:
                self.waited_s += time.perf_counter() - began
        self.add(chunk)

    async def _room(self) -> None:
        try:
            async with asyncio.timeout(self._idle or None):
                while len(self._chunks) >= RUN_AHEAD:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StreamAbandoned(
                f"the stream was not read for {self._idle:g} s (timeouts.idle) and has been ended"
            ) from None

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        self._error = error

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def leave(self) -> None:
        """Its reader wants no more: whatever ends the stream now is no error to it."""
        self._left = True

    async def get(self) -> bytes | None:
        """The next chunk, ``None`` at the end; raises what ended the stream early."""
        while not self._chunks:
            if self._closed:
                if self._error is not None and not self._left:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._changed.set()
        return chunk

    def take_all(self) -> bytes:
        found = b"".join(self._chunks)
        self._chunks.clear()
        return found


class Ending:
    """Cancels a loop's task, once: a second cancellation would break into what the first has it
    tidy up, and calls that were made would be missing from the book."""

    __slots__ = ("_asked", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self._asked = False

    def ask(self) -> None:
        """Begin to end it; idempotent."""
        if not self._asked:
            self._asked = True
            self.task.cancel()


class SpeculativeStream:
    """The body of a streamed answer. Closing, cancelling or dropping it ends the loop at once."""

    def __init__(self, outbox: Outbox, task: asyncio.Task[None]) -> None:
        self._outbox = outbox
        self._ending = Ending(task)
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._outbox.get()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """End the loop and every upstream request of it; idempotent."""
        self._outbox.leave()
        if not self._ending.task.done():
            self._ending.ask()
            await asyncio.wait([self._ending.task])

    def __del__(self) -> None:
        ending = getattr(self, "_ending", None)
        if ending is not None and not ending.task.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ending.ask)

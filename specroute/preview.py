"""An answer with provisional text between what is committed: one stream of both.

Knows how the chunks of any streamed answer and drafted text become one stream that a screen can
follow, and how far drafting runs ahead of a plain answer. The answer itself is handed on as it is.
Knows no methods and no policy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx2

from specroute.delivery import Outbox, SpeculativeStream, interrupted
from specroute.draft.ahead import Ahead
from specroute.errors import DraftError, StatusError
from specroute.exchange import Reply
from specroute.http import wire
from specroute.http.chunks import Encoder
from specroute.http.deadline import Deadline
from specroute.http.sse import SseDecoder, SseEvent
from specroute.http.supervisor import Supervisor
from specroute.http.unbroken import ended
from specroute.provisional import Provisional, Rollback, Screen
from specroute.reporting import ReportHandle
from specroute.types import Attempt

AHEAD = 64
"""About how many tokens are drafted beyond what is committed."""
IDLE = 32
"""Times that nobody has anything to propose, after which nobody is asked any more."""
ROLLBACKS = 2
"""Times that text may be taken back before its share of confirmed characters must be half."""


class Preview:
    """One request's. ``handle``: its report, which also learns when the first text was shown."""

    def __init__(
        self,
        supervisor: Supervisor,
        handle: ReportHandle,
        deadline: Deadline,
        *,
        chat: bool,
        model: str,
    ) -> None:
        self._supervisor = supervisor
        self._handle = handle
        self._deadline = deadline
        self._screen = Screen()
        self._encoder = Encoder(
            chat=chat,
            answer_id=handle.report.id,
            model=model,
            created=int(time.time()),
            include_usage=False,
        )
        self._outbox = Outbox(deadline.timeouts.idle)
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()
        self._early: Reply | BaseException | None = None
        """What came before anything could be shown, and is the caller's as it is."""
        self._reply: Reply | None = None
        self._drafting: asyncio.Task[None] | None = None
        self._ended = False
        self._idle = 0
        """Times that nobody had anything to propose."""
        self._any_text = False

    # --- what is shown ----------------------------------------------------------------------

    def drafted(self, at: int, text: str) -> None:
        """A draft of what may follow the first ``at`` characters of the answer."""
        if not self._ended:
            self._put(self._screen.drafted(at, text))

    def _put(self, events: Sequence[Provisional | Rollback]) -> None:
        for event in events:
            if isinstance(event, Provisional) and not self._any_text:
                shown_at = self._deadline.clock() - self._deadline.started
                self._handle.update(first_text_s=shown_at)
                self._any_text = True
            self._outbox.add(self._encoder.shown(event))
            self._begun.set()

    # --- the stream -------------------------------------------------------------------------

    async def of(self, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """The reply that ``answer`` comes to, with provisional text before and in it.

        Returns with the first text of either kind. An error status that comes first is returned,
        an error raised, as ``answer`` would have; later ones end the stream.
        """
        task = self._supervisor.spawn(self._run(answer), name="provisional text")
        if task is None:
            return await answer()
        try:
            await self._begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if isinstance(self._early, BaseException):
            raise self._early
        if self._early is not None:
            return self._early
        headers = httpx2.Headers({"content-type": "text/event-stream; charset=utf-8"})
        body = SpeculativeStream(self._outbox, task)
        if self._reply is not None:
            return replace(self._reply, headers=headers, body=body, data=None)
        return Reply(200, headers, body, handle=self._handle)

    async def _run(self, answer: Callable[[], Awaitable[Reply]]) -> None:
        answering = asyncio.create_task(self._answer(answer), name="answer")
        try:
            await asyncio.wait([answering])
        except asyncio.CancelledError:
            self._fail(interrupted((self._handle.base.target or "").partition(":")[0]))
            raise
        finally:
            try:
                # What drafting cost goes into the books before the answer closes them.
                await self._stop_drafting()
            finally:
                answering.cancel()
                await ended(answering)
                self._outbox.close()
                self._begun.set()
        if not answering.cancelled():
            answering.result()

    async def _answer(self, answer: Callable[[], Awaitable[Reply]]) -> None:
        try:
            reply = await answer()
            if reply.status >= 400 or isinstance(reply.body, bytes):
                await self._whole(reply)
            else:
                self._reply = reply
                await self._follow(reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
            self._fail(error)

    async def _whole(self, reply: Reply) -> None:
        """An error, or a stream that was there at once."""
        assert isinstance(reply.body, bytes)
        if reply.status < 400:
            self._reply = reply
            await self._hand_on(SseDecoder(reply.provider).feed(reply.body))
        elif self._begun.is_set():
            said = wire.status_message(reply.status, reply.body)
            self._fail(
                StatusError(
                    f"{reply.provider}: {said}",
                    provider=reply.provider,
                    status=reply.status,
                    headers=reply.headers,
                    body=reply.body,
                )
            )
        else:
            self._early = reply

    async def _follow(self, reply: Reply) -> None:
        body: Any = reply.body
        decoder = SseDecoder(reply.provider)
        async with aclosing(body):
            async for chunk in body:
                await self._hand_on(decoder.feed(chunk))
            await self._hand_on(decoder.flush())

    def _fail(self, error: Exception) -> None:
        if self._begun.is_set():
            self._outbox.fail(error)
        else:
            self._early = error

    async def _hand_on(self, events: Sequence[SseEvent]) -> None:
        for event in events:
            if not event.payload:
                continue
            last = event.done or event.has_finish
            if last and not self._ended:
                self._ended = True
                await self._stop_drafting()
            text = "" if event.done else _text(event)
            before, after = self._screen.commit(text, last=last)
            self._any_text = self._any_text or bool(text)
            self._put(before)
            await self._outbox.put(event.raw + b"\n\n")
            self._put(after)
            self._begun.set()
            self._changed.set()

    # --- drafting beside a plain answer -----------------------------------------------------

    def draft_beside(self, ahead: Ahead) -> None:
        """Draft ahead of the answer for as long as enough of it is confirmed."""
        if self._drafting is None and not self._ended:
            self._drafting = asyncio.create_task(self._draft(ahead), name="drafting ahead")

    async def _draft(self, ahead: Ahead) -> None:
        screen = self._screen
        try:
            while self._worth:
                committed, shown = screen.committed, screen.provisional
                if not shown:
                    await self._draft_on(ahead, committed)
                if screen.committed == committed:
                    # Nothing to add until the answer itself goes on.
                    self._changed.clear()
                    await self._changed.wait()
        except DraftError:
            pass  # Noted already; the answer itself goes on.
        finally:
            await ahead.aclose()

    async def _draft_on(self, ahead: Ahead, before: str) -> None:
        """One draft after the committed text ``before``, for as long as it isn't refuted."""
        text, pieces = before, 0
        async with aclosing(ahead.pieces(before, AHEAD)) as found:
            async for piece in found:
                text += piece
                pieces += 1
                self.drafted(len(before), text[len(before) :])
                if not text.startswith(self._screen.committed) or not self._worth:
                    return
        if not pieces:
            self._idle += 1

    @property
    def _worth(self) -> bool:
        screen = self._screen
        if self._idle >= IDLE:
            return False
        return screen.rollbacks < ROLLBACKS or screen.confirmed >= screen.taken_back

    async def _stop_drafting(self) -> None:
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            drafting.cancel()
            await ended(drafting)
            if not drafting.cancelled() and (error := drafting.exception()) is not None:
                self.note(f"provisional text ended: {type(error).__name__}: {error}")

    def booked(self, attempt: Attempt) -> None:
        """A draft was paid for."""
        self._handle.update(attempts=(*self._handle.base.attempts, attempt))

    def note(self, text: str) -> None:
        """For the report."""
        self._handle.update(notes=(*self._handle.base.notes, text))


def _text(event: SseEvent) -> str:
    """The text that a chunk adds to the answer."""
    choices = event.data.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return ""
    delta = choices[0].get("delta")
    found = delta.get("content") if isinstance(delta, dict) else choices[0].get("text")
    return found if isinstance(found, str) else ""

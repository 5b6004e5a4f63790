"""The plain stream: upstream bytes handed on, and the few figures that its report needs.

Knows how to tell content, the end, usage and an error from the bytes of a chunk, and that an
answer which fails before its first content may be made anew, one that fails later be taken up.
Decodes JSON only to see that it is some. Books are settled before ``[DONE]`` goes out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, Self

from specroute.errors import BadAnswer, ErrorInBody, ProviderError
from specroute.http import wire
from specroute.http.gate import Permits
from specroute.http.mend import Mender, looks_odd
from specroute.http.reply import OpenReply, truncated
from specroute.http.sse import SseDecoder, SseEvent
from specroute.plain.ordinary import looks_whole, middle, no_events, ordinary
from specroute.plain.tally import PlainTally
from specroute.types import Usage


class Recovery(Protocol):
    """Who goes on with an answer that broke off."""

    async def again(self, error: ProviderError) -> OpenReply:
        """Another answer from its start: nothing of this one was handed on. Raises what stands."""
        ...

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes]
    ) -> AsyncGenerator[bytes] | None:
        """The rest of an answer of which ``kept`` was handed on; ``None``: nobody can go on."""
        ...


class PlainStream:
    """Yields whole events as bytes; ends normally only when the answer did.

    ``choices``: how many choices must have ended. With ``recovery`` what comes before the first
    content (the role, filters' verdicts) is handed on together with it, so that an answer that
    fails before may be made anew without a trace.

    Raises :class:`~specroute.errors.ErrorInBody` for an error event, ``StreamTruncated`` for an
    answer that just stops, ``DeadlineExceeded`` and ``StreamAbandoned``.
    """

    __slots__ = (
        "_begun",
        "_choices",
        "_closed",
        "_decoder",
        "_delivered",
        "_ended",
        "_failure",
        "_finished",
        "_held",
        "_kept",
        "_loop",
        "_mender",
        "_over",
        "_provider",
        "_recovery",
        "_reply",
        "_rest",
        "_tail",
        "_tally",
    )

    def __init__(
        self,
        reply: OpenReply,
        tally: PlainTally,
        provider: str,
        choices: int = 1,
        recovery: Recovery | None = None,
    ) -> None:
        self._tally = tally
        self._provider = provider
        self._choices = choices
        self._recovery = recovery
        self._delivered = recovery is None
        """Something of the answer was handed on."""
        self._kept: list[bytes] = []
        """What was, where somebody might go on with it."""
        self._rest: AsyncGenerator[bytes] | None = None
        """The rest of an answer that was taken up."""
        self._closed = False
        """By its reader: nobody wants the rest."""
        self._loop = asyncio.get_running_loop()
        self._begin(reply)

    def _begin(self, reply: OpenReply) -> None:
        self._reply = reply
        self._decoder = SseDecoder(self._provider)
        self._begun = False
        self._ended: set[int] = set()
        """Choices that have their finish_reason."""
        self._finished = False
        self._over = False
        self._held = b""
        self._mender = Mender()
        self._failure: ProviderError | None = None
        """To be raised once what came before it was handed on."""
        self._tail: bytes | None = None
        reply.keep()
        reply.on_abandoned(self._tally.abandoned)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            while True:
                try:
                    chunk = piece = None
                    if self._begun and not (
                        self._over or self._tail or self._failure or self._rest
                    ):
                        # Amid the answer: one coroutine less for each piece of it.
                        chunk = await self._reply.chunk()
                        if chunk is None:
                            piece = self._handed(self._eof())
                            break
                        piece = self._fast(chunk)
                    if piece is None:
                        piece = await self._next(chunk)
                    else:
                        self._reply.watch.handed()
                        if self._recovery is not None:
                            self._kept.append(piece)
                    break
                except ProviderError as error:
                    self._reply.settle(self._used, error)
                    await self._reply.aclose()
                    if self._finished and not isinstance(error, ErrorInBody):
                        piece = self._complete()  # Broken after its end: nothing is missing.
                        break
                    if self._recovery is None or self._rest is not None or self._closed:
                        raise
                    if not self._delivered:
                        self._begin(await self._recovery.again(error))
                        continue
                    self._rest = await self._recovery.resume(error, self._kept)
                    if self._rest is None:
                        raise
        except BaseException as error:
            self._over = True
            self._tally.fail(error)
            self._reply.settle(self._used, error)
            await self._reply.aclose()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _next(self, chunk: bytes | None) -> bytes | None:
        """The next bytes to hand on, ``None`` at the end; ``chunk``: what was read already."""
        if self._rest is not None:
            return await anext(self._rest, None)
        reply = self._reply
        while chunk is not None or not self._over:
            if self._failure is not None:
                raise self._failure
            if self._tail is not None:
                return await self._end()
            if chunk is None:
                chunk = await reply.chunk()
                if chunk is None:
                    return self._handed(self._eof())
            if not self._begun:
                self._begun = True
                if no_events(chunk):
                    return await self._whole(chunk)
            out = self._fast(chunk)
            if out is None:
                out = self._mixed(chunk)
            if out is None:
                parts: list[bytes] = []
                self._slow(self._decoder.feed(chunk), parts)
                out = b"".join(parts)
            chunk = None
            if out:
                reply.watch.handed()
                return self._handed(out)
        return None

    def _handed(self, out: bytes | None) -> bytes | None:
        """Keep what is handed on, where somebody might have to go on with it."""
        if out and self._recovery is not None:
            self._kept.append(out)
        return out

    @property
    def _used(self) -> Usage:
        """The server's count, or what came before it could be given."""
        usage, pieces = self._tally.usage, self._tally.chunks
        return usage if usage.completion_tokens is not None else Usage(None, pieces, None)

    async def _whole(self, first: bytes) -> bytes:
        """JSON or a web page under the name of a stream: the answer, its error, or neither."""
        self._over = True
        body = first + await self._reply.read()
        data = wire.read_object(body, provider=self._provider)
        error = wire.error_in(data)
        if error is not None:
            raise ErrorInBody(
                wire.error_message(error, "an error came instead of a stream"),
                provider=self._provider,
                body=error,
            )
        wire.check_answer(data, provider=self._provider)
        self._tally.answered(data)
        self._reply.settle(self._tally.usage)
        return wire.as_chunks(data)

    def _fast(self, chunk: bytes) -> bytes | None:
        """Whole, ordinary content events go on as they are; ``None``: look closely."""
        if self._decoder.pending or self._held:
            return None
        events = ordinary(chunk)
        return chunk if events and self._pass(chunk, events) else None

    def _pass(self, chunk: bytes, events: int) -> bool:
        """Take note of ordinary events that go on as they are; whether they are JSON."""
        # Whoever may have to go on elsewhere has to know at once. Otherwise what looks whole need
        # not be read twice: the reader's own decoding tells.
        if self._recovery is not None or not looks_whole(chunk):
            try:
                for line in chunk[:-2].split(b"\n\n"):
                    json.loads(line[6:])
            except ValueError:
                return False
        self._decoder.skip()
        self._delivered = True
        self._tally.content(self._reply.watch.content(), events)
        if self._tally.overheard is not None:
            self._tally.overheard.chunk(chunk)
        return True

    def _mixed(self, chunk: bytes) -> bytes | None:
        """Events that came together, most of them ordinary, as they do from a fast server: only
        those before and after (the role, the end) are looked at closely. ``None``: look at all."""
        if self._decoder.pending:
            return None
        start, end = middle(chunk)
        events = ordinary(chunk[start:end]) if end > start else 0
        if not events:
            return None
        out: list[bytes] = []
        if start:
            self._slow(self._decoder.feed(chunk[:start]), out)
            if self._tail is not None or self._failure is not None:
                return b"".join(out)
        between = chunk[start:end]
        if self._pass(between, events):
            out.append(self._release() + between)
        else:
            self._slow(self._decoder.feed(between), out)
        if end < len(chunk) and self._tail is None and self._failure is None:
            self._slow(self._decoder.feed(chunk[end:]), out)
        return b"".join(out)

    def _slow(self, events: list[SseEvent], out: list[bytes]) -> None:
        """Add to ``out`` what of these events goes on. An error among them is kept for the next
        read, so that what came before it is not lost."""
        try:
            for event in events:
                if event.done:
                    self._finished = self._delivered = True
                    self._tail = wire.DONE
                    break
                self._event(event, out)
        except ProviderError as error:
            if not out:
                raise
            self._failure = error
        if self._tail is not None and self._held:
            out.append(self._release())

    def _event(self, event: SseEvent, out: list[bytes]) -> None:
        error = event.error
        if error is not None:
            raise ErrorInBody(
                wire.error_message(error, "An error occurred during streaming"),
                provider=self._provider,
                body=error,
            )
        if not event.payload:
            if event.raw.startswith(b":"):
                out.append(event.raw + b"\n\n")  # A keep-alive: the caller's to see, too.
            return
        data = event.data  # An event that is no JSON object is no answer.
        if event.has_content:
            self._tally.content(self._reply.watch.content(), 1)
            if self._tally.overheard is not None:
                self._tally.overheard.chunk(event.raw + b"\n\n")
            self._delivered = True
        if event.has_finish:
            self._note_finish(data)
        if event.has_usage:
            self._tally.usage = Usage.from_wire(data.get("usage"))
            if self._tally.own_usage and event.only_usage:
                return
        odd = looks_odd(event.payload) and self._mender.mend(data)
        raw = wire.sse(data) if odd else event.raw + b"\n\n"
        if self._delivered:
            out.append(self._release() + raw)
        else:
            self._held += raw

    def _release(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _note_finish(self, data: Mapping[str, Any]) -> None:
        self._tally.note_finish(data)
        choices = data.get("choices")
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if wire.finish_reason(choice) is not None:
                index = choice.get("index")
                self._ended.add(index if isinstance(index, int) else position)
        self._finished = len(self._ended) >= self._choices
        self._delivered = self._delivered or self._finished

    def _eof(self) -> bytes | None:
        """The body ended: complete only if every finish_reason or ``[DONE]`` was in it."""
        left = self._decoder.flush()
        for event in left:
            if event.payload and not event.done:
                try:
                    _ = event.data
                except BadAnswer as error:
                    raise truncated(self._provider) from error
        parts: list[bytes] = []
        self._slow(left, parts)
        out = b"".join(parts)
        if not self._finished:
            self._failure = self._failure or truncated(self._provider)
        if self._failure is not None:
            if not out:
                raise self._failure
            return out
        return out + (self._complete() or b"") or None

    def _complete(self) -> bytes | None:
        """The answer is there in full, though its stream did not say so in the end."""
        self._over = True
        self._tally.end("ok", complete=True)
        self._reply.settle(self._used)
        return (self._release() + (self._tail or b"")) or None

    async def _end(self) -> bytes:
        """``[DONE]`` was seen: settle the connection and the books, then hand it on."""
        tail, self._tail = self._tail, None
        self._over = True
        self._reply.settle(self._used)
        await self._reply.drain()
        self._tally.end("ok", complete=True)
        return tail or b""

    async def aclose(self) -> None:
        """End the stream and its upstream; idempotent. What was finished counts as complete."""
        self._over = self._closed = True
        self._closed_early()
        if self._rest is not None:
            await self._rest.aclose()
        self._reply.settle(self._used)
        await self._reply.aclose()

    def _closed_early(self) -> None:
        if self._finished:
            self._tally.end("ok", complete=True)
        else:
            self._tally.end("cancelled", complete=False, error="closed by the caller")

    def __del__(self) -> None:
        tally = getattr(self, "_tally", None)
        if tally is not None and not tally.done and not self._loop.is_closed():
            # The reply ends the upstream by its own finaliser.
            outcome = ("ok", True, None) if self._finished else ("cancelled", False, "dropped")
            permits, used = self._reply.permits, self._used
            self._loop.call_soon_threadsafe(_end_later, tally, permits, used, *outcome)


def _end_later(
    tally: PlainTally,
    permits: Permits | None,
    used: Usage,
    outcome: str,
    complete: bool,
    error: str | None,
) -> None:
    tally.end(outcome, complete=complete, error=error)
    if permits is not None:
        permits.settle(used)

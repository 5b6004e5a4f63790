"""A stream of server-sent events over an answer, strict about its end.

Knows when a stream is complete, cut or an error. Deliberately knows no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from specroute.errors import (
    BadAnswer,
    ErrorInBody,
)
from specroute.http import wire
from specroute.http.reply import OpenReply, truncated
from specroute.http.sse import SseDecoder, SseEvent
from specroute.types import Usage


class EventStream:
    """A stream of :class:`~specroute.http.sse.SseEvent`, without comments and empty events.

    Ends normally only after ``[DONE]``, or at the end of the body once a ``finish_reason`` was
    seen; otherwise it raises :class:`StreamTruncated`. An error event raises :class:`ErrorInBody`.
    ``[DONE]`` itself is not yielded. Cancelling or closing ends the upstream at once. ``secrets``
    are taken out of what an error event says.
    """

    def __init__(self, reply: OpenReply, provider: str, secrets: Sequence[str] = ()) -> None:
        self.reply = reply
        self._secrets = secrets
        self.headers: Mapping[str, str] = reply.headers
        self.request_id = reply.request_id
        self.finished = False
        """A ``finish_reason`` or ``[DONE]`` was seen."""
        self.usage: Usage | None = None
        """What the call used, as far as its reader knows: set by whoever reads the events."""
        self._provider = provider
        self._decoder = SseDecoder(provider)
        self._ready: list[SseEvent] = []
        self._over = False
        reply.keep()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SseEvent:
        try:
            event = await self._next()
        except BaseException as error:
            self.reply.settle(self.usage, error)
            await self.aclose()
            raise
        if event is None:
            self.reply.settle(self.usage)
            raise StopAsyncIteration
        return event

    async def _next(self) -> SseEvent | None:
        while True:
            while self._ready:
                event = self._ready.pop(0)
                if event.done:
                    self.finished = True
                    self._over = True
                    self._ready.clear()
                    await self.reply.drain()
                    return None
                error = event.error
                if error is not None:
                    error = wire.redact_value(error, self._secrets)
                    raise ErrorInBody(
                        f"{self._provider}: "
                        + wire.error_message(error, "An error occurred during streaming"),
                        provider=self._provider,
                        body=error,
                    )
                if not event.payload:
                    continue
                if event.has_content:
                    self.reply.watch.content()
                if not self.finished and event.has_finish:
                    self.finished = True
                self.reply.watch.handed()
                return event
            if self._over:
                return None
            chunk = await self.reply.chunk()
            if chunk is None:
                self._over = True
                self._ready = self._decoder.flush()
                for event in self._ready:
                    if event.payload and not event.done:
                        _whole(event, self._provider)
                if not self.finished and not any(e.done or e.has_finish for e in self._ready):
                    raise truncated(self._provider)
            else:
                self._ready = self._decoder.feed(chunk)

    async def aclose(self) -> None:
        """End the stream and its upstream request; idempotent."""
        self._over = True
        self._ready.clear()
        self.reply.settle(self.usage)
        await self.reply.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _whole(event: SseEvent, provider: str) -> None:
    """An event that the end of the stream cut off is no event."""
    try:
        _ = event.data
    except BadAnswer as error:
        raise truncated(provider) from error


class Ready(EventStream):
    """A whole answer that came at once, read as events."""

    def __init__(self, reply: OpenReply, provider: str, events: bytes) -> None:
        super().__init__(reply, provider)
        self._ready = self._decoder.feed(events)

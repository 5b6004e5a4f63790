"""What openai's streams decode their bytes with: an empty event is none, one that is no JSON is a
typed error.

Knows what openai's stream reads of an event, and nothing of where the bytes come from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from specroute import errors, openai_errors
from specroute.http.sse import SseDecoder


class _Event:
    """What openai's stream reads of an event."""

    __slots__ = ("_url", "data", "event", "id", "retry")

    def __init__(self, name: str | None, data: str, url: httpx2.URL) -> None:
        self.event = name
        self.data = data
        self.id: str | None = None
        self.retry: int | None = None
        self._url = url

    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise openai_errors.BadAnswer(
                errors.BadAnswer(f"a stream event is not JSON: {self.data[:80]!r}", provider=""),
                httpx2.Request("POST", self._url),
            ) from error


class StrictDecoder:
    """openai's stream decoding with our decoder."""

    def __init__(self, url: httpx2.URL) -> None:
        self._url = url

    def iter_bytes(self, iterator: Iterator[bytes]) -> Iterator[Any]:
        decoder = SseDecoder()
        for chunk in iterator:
            yield from self._events(decoder, chunk)

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        decoder = SseDecoder()
        async for chunk in iterator:
            for event in self._events(decoder, chunk):
                yield event

    def _events(self, decoder: SseDecoder, chunk: bytes) -> Iterator[_Event]:
        url = self._url
        try:
            for event in decoder.feed(chunk):
                if event.payload:
                    name = event.name.decode("utf-8", "replace") if event.name else None
                    yield _Event(name, event.payload.decode("utf-8"), url)
        except UnicodeDecodeError as error:
            raise openai_errors.BadAnswer(
                errors.BadAnswer("a stream event is not UTF-8", provider=""),
                httpx2.Request("POST", url),
            ) from error

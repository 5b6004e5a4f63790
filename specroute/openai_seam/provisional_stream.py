"""``client.speculate()``: an openai stream read as events of a screen.

Knows the chunks that carry provisional text beside those of the answer, for any client of openai's
shapes. Knows no router: the stream may as well come through a proxy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from specroute.errors import RequestError
from specroute.provisional import Commit, Done, Provisional, Rollback, SpeculationEvent
from specroute.reporting import FIELD, report
from specroute.types import Report


class _Events:
    """What both kinds of stream have in common."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._stream: Any = None
        self._events: deque[SpeculationEvent] = deque()
        self._over = False

    @property
    def report(self) -> Report:
        """The report as it stands. ``LookupError`` before the request has left."""
        return report(self._stream)

    def _end(self) -> None:
        self._over = True
        self._events.append(Done(self.report))


class ProvisionalStream(_Events):
    """The events of one answer: :class:`Provisional`, :class:`Rollback` and :class:`Commit` in the
    order in which a screen must follow them, then one :class:`Done`.

    The request leaves with the first ``async for`` or ``async with``. Raises what ``create`` and
    the iteration of its stream raise. Leaving early ends every call behind it; so does
    :meth:`aclose`.
    """

    async def _open(self) -> Any:
        if self._stream is None:
            self._stream = await self._create()
        return self._stream

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SpeculationEvent:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            stream = await self._open()
            try:
                chunk = await stream.__anext__()
            except StopAsyncIteration:
                self._end()
            else:
                self._events.extend(events_of(chunk))
        return self._events.popleft()

    async def aclose(self) -> None:
        """End the answer and what still runs for it; idempotent."""
        self._over = True
        self._events.clear()
        if self._stream is not None:
            await self._stream.close()


class SyncProvisionalStream(_Events):
    """As :class:`ProvisionalStream`, for code that isn't async."""

    def _open(self) -> Any:
        if self._stream is None:
            self._stream = self._create()
        return self._stream

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SpeculationEvent:
        while not self._events:
            if self._over:
                raise StopIteration
            stream = self._open()
            try:
                chunk = next(stream)
            except StopIteration:
                self._end()
            else:
                self._events.extend(events_of(chunk))
        return self._events.popleft()

    def close(self) -> None:
        """End the answer and what still runs for it; idempotent."""
        self._over = True
        self._events.clear()
        if self._stream is not None:
            self._stream.close()


def events_of(chunk: Any) -> list[SpeculationEvent]:
    """What a chunk of a stream changes on the screen."""
    said = (getattr(chunk, "model_extra", None) or {}).get(FIELD)
    if isinstance(said, Mapping):
        if isinstance(said.get("provisional"), str):
            return [Provisional(said["provisional"])]
        if isinstance(said.get("rollback"), int):
            return [Rollback(said["rollback"])]
    if not chunk.choices:
        return []
    choice = chunk.choices[0]
    delta = getattr(choice, "delta", None)
    if delta is None:
        return [Commit(choice.text)] if getattr(choice, "text", "") else []
    more = delta.model_dump(exclude={"role", "content"}, exclude_none=True)
    return [Commit(delta.content or "", delta)] if delta.content or more else []


def asking(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``create``'s arguments, asking for a stream with provisional text.

    Raises :class:`RequestError` for what can't be shown as one text.
    """
    if arguments.get("stream") is False:
        raise RequestError("speculate() is a stream of events: leave 'stream' out", param="stream")
    if arguments.get("n") not in (None, 1):
        raise RequestError(
            f"speculate() follows one answer: expected n = 1, got {arguments['n']!r}", param="n"
        )
    extra = dict(arguments.get("extra_body") or {})
    extra[FIELD] = {**(extra.get(FIELD) or {}), "provisional": True}
    return {**arguments, "stream": True, "extra_body": extra}

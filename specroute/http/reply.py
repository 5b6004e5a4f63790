"""An answer on its way: headers are there, the body is read, drained or ended.

Knows one exchange's body and its clock. Deliberately knows no events (``http.events``) and nothing
of how the request was sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

import httpx2

from specroute.errors import (
    ProviderError,
    StreamAbandoned,
    StreamTruncated,
)
from specroute.http.gate import Permits
from specroute.http.supervisor import Supervisor
from specroute.http.unbroken import unbroken
from specroute.http.watch import Watch
from specroute.types import Usage

DRAIN_S = 0.1
"""How long to wait for a stream's end after ``[DONE]``, so that the connection can be reused."""


class OpenReply:
    """An answer whose headers are there and whose body is still on its way.

    Read it with :meth:`read`, :meth:`chunk` or ``async for``; end it with :meth:`aclose` (or
    ``async with``), which ends the upstream at once. Dropping it does the same a little later.
    """

    __slots__ = ("_body", "headers", "response", "status", "watch")

    def __init__(self, response: httpx2.Response, body: Body, watch: Watch) -> None:
        self.response = response
        self.status = response.status_code
        self.headers: httpx2.Headers = response.headers
        self.watch = watch
        self._body = body

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def decoded(self) -> bool:
        """Whether :meth:`chunk` undoes a ``Content-Encoding``."""
        return self._body.decoded

    @property
    def encoded(self) -> bool:
        """Whether what :meth:`chunk` gives is still under a ``Content-Encoding``."""
        return self._body.encoded

    def on_abandoned(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the idle limit ends this; it must not hold the reply."""
        self._body.on_abandoned = callback

    @property
    def permits(self) -> Permits | None:
        """What :meth:`settle` tells, for a finaliser that may not hold the reply."""
        return self._body.permits

    def keep(self) -> None:
        """Whoever reads this knows more of its end than the connection does and calls
        :meth:`settle`; closing alone no longer does."""
        self._body.kept = True

    def settle(self, usage: Usage | None = None, error: BaseException | None = None) -> None:
        """Tell the gates how the call ended; only the first time counts."""
        if self._body.permits is not None:
            self._body.permits.settle(usage, error)

    def chunk(self) -> Coroutine[Any, Any, bytes | None]:
        """The next bytes of the body, ``None`` at its end.

        Raises :class:`DeadlineExceeded`, :class:`StreamTruncated`, :class:`StreamAbandoned`. Call
        ``watch.content()`` for bytes that carry content, ``watch.handed()`` on handing some on.
        """
        return self._body.chunk()

    def read(self) -> Coroutine[Any, Any, bytes]:
        """The whole body, decoded; closes. Every byte counts as content."""
        return self._body.read()

    async def drain(self, seconds: float = DRAIN_S) -> None:
        """Read on to the end for at most ``seconds`` and close, so the connection can be reused."""
        try:
            async with asyncio.timeout(seconds):
                while await self._body.chunk() is not None:
                    pass
        except (TimeoutError, ProviderError):
            pass  # The answer is complete; only this connection's reuse is lost.
        finally:
            await self._body.aclose()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            while (part := await self._body.chunk()) is not None:
                self.watch.content()
                self.watch.handed()
                yield part
        finally:
            await self._body.aclose()

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End the exchange; idempotent."""
        return self._body.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._body.aclose()

    def __del__(self) -> None:
        body = getattr(self, "_body", None)
        if body is not None and not body.closed:
            body.abandon_soon()
        elif body is not None and body.permits is not None:
            body.permits.settle()


class Body:
    """The upstream side of an :class:`OpenReply`; the timer may hold it, the reader does not."""

    __slots__ = (
        "_exhausted",
        "_iterator",
        "_loop",
        "_next",
        "_provider",
        "_reading",
        "_response",
        "_supervisor",
        "_watch",
        "abandoned",
        "closed",
        "decoded",
        "encoded",
        "kept",
        "on_abandoned",
        "permits",
    )

    def __init__(
        self,
        response: httpx2.Response,
        watch: Watch,
        provider: str,
        supervisor: Supervisor,
        decode: bool,
        permits: Permits | None = None,
    ) -> None:
        self._response = response
        self._watch = watch
        self._provider = provider
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._exhausted = False
        self.closed = False
        self.abandoned = False
        self.permits = permits
        self.kept = False
        self.on_abandoned: Callable[[], None] | None = None
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        self.decoded = decode and encoded
        self.encoded = encoded and not decode
        # Two generators fewer a chunk than aiter_bytes(), where there is nothing to decode.
        self._iterator: AsyncIterator[bytes] = (
            response.aiter_bytes() if self.decoded else response.stream.__aiter__()  # type: ignore[union-attr]
        )
        self._next = self._iterator.__anext__
        watch.idle(self._idle)

    async def chunk(self) -> bytes | None:
        if self.closed:
            return self._after_end()
        self._reading = True
        try:
            with self._watch:
                return await self._next()
        except StopAsyncIteration:
            self._reading, self._exhausted = False, True
            await self.aclose()
            return None
        except BaseException as error:  # noqa: BLE001 - raised again, as what it means
            await self._failed(error)
            return None
        finally:
            self._reading = False

    async def read(self) -> bytes:
        if self.closed:
            return self._after_end() or b""
        self._reading = True
        try:
            with self._watch:
                parts: list[bytes] = []
                async for part in self._iterator:
                    self._watch.content()
                    parts.append(part)
        except BaseException as error:  # noqa: BLE001 - raised again, as what it means
            await self._failed(error)
            return b""
        finally:
            self._reading = False
        self._exhausted = True
        await self.aclose()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _after_end(self) -> bytes | None:
        if self.abandoned:
            raise StreamAbandoned(
                f"{self._provider}: the stream was not read for "
                f"{self._watch.deadline.timeouts.idle:g} s (timeouts.idle) and has been ended"
            )
        return None

    async def _failed(self, error: BaseException) -> None:
        """Close and raise what a failed read means; return if it was closed from elsewhere."""
        if self.closed and isinstance(error, httpx2.HTTPError | httpx2.StreamError | ssl.SSLError):
            return
        # After a deadline or a cancellation, not every transport closes by itself.
        self._reading = False
        self._settle(error)
        await self.aclose()
        if isinstance(error, httpx2.TimeoutException):
            raise self._watch.passed() from error
        if isinstance(error, httpx2.HTTPError | httpx2.StreamError | ssl.SSLError):
            raise StreamTruncated(
                f"{self._provider}: the connection broke before the answer was complete "
                f"({type(error).__name__})",
                provider=self._provider,
            ) from error
        raise error

    async def aclose(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._watch.stop()
        self._settle(None)
        try:
            if not self._reading and not self._exhausted:
                close = getattr(self._iterator, "aclose", None)
                if close is not None:
                    await unbroken(close())
        finally:
            await unbroken(self._response.aclose())

    def _settle(self, error: BaseException | None) -> None:
        if self.permits is not None and not self.kept:
            self.permits.settle(None, error)

    def _idle(self) -> None:
        self.abandoned = True
        self.kept = False
        if self.on_abandoned is not None:
            self.on_abandoned()
        self._supervisor.spawn(self.aclose(), name="end of a stream nobody reads")

    def abandon_soon(self) -> None:
        """From any thread, a finaliser included: end the upstream on its own loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spawn_close)

    def _spawn_close(self) -> None:
        self.kept = False
        if not self.closed:
            self._supervisor.spawn(self.aclose(), name="end of a dropped stream")


def truncated(provider: str) -> StreamTruncated:
    """The error for a stream that just stops."""
    return StreamTruncated(
        f"{provider}: the stream ended with neither a finish_reason nor [DONE]; "
        "what came of the answer is incomplete",
        provider=provider,
    )

"""A user's synchronous ``httpx2.Client`` where an asynchronous one is wanted.

Knows that each of its waits must happen in a worker thread. A wait that nobody wants any more can't
be interrupted there: it ends with the client's own timeout, or with the next byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx2

T = TypeVar("T")

MOST_WAIT_S = 600.0
"""openai's own limit on a silent connection, where no other is set."""
THREADS = 1000


class Threaded(httpx2.AsyncClient):
    """Sends with ``client``. Closing it closes ``client``."""

    def __init__(self, client: httpx2.Client) -> None:
        super().__init__(transport=_Nowhere(), timeout=client.timeout)
        self.client = client
        self.follow_redirects = client.follow_redirects
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="specroute upstream")

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        return self.client.build_request(*args, **kwargs)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        limits = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            name: MOST_WAIT_S if limits.get(name) is None else limits[name]
            for name in ("connect", "read", "write", "pool")
        }
        if not isinstance(request.stream, httpx2.SyncByteStream):
            request.stream = httpx2.ByteStream(await request.aread())
        waiting = self._thread(lambda: self.client.send(request, **options))
        try:
            response = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(self._close_late)
            raise
        response.stream = _Body(response, response.stream, self._thread)
        return response

    def _close_late(self, waiting: asyncio.Future[httpx2.Response]) -> None:
        """The answer to a request that was given up."""
        if not waiting.cancelled() and waiting.exception() is None:
            self._threads.submit(waiting.result().close)

    def _thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    @property
    def is_closed(self) -> bool:
        return self.client.is_closed

    async def aclose(self) -> None:
        self.client.close()
        self._threads.shutdown(wait=False)


class _Nowhere(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise RuntimeError("requests are sent by the client that was given")


class _Body(httpx2.AsyncByteStream):
    """A body that is read in worker threads, one piece at a time."""

    def __init__(
        self,
        response: httpx2.Response,
        body: Any,
        thread: Callable[[Callable[[], bytes | None]], asyncio.Future[bytes | None]],
    ) -> None:
        self._response = response
        self._body = body
        self._thread = thread
        self._pieces: Iterator[bytes] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._pieces = iter(self._body)
        while (piece := await self._thread(self._next)) is not None:
            yield piece

    def _next(self) -> bytes | None:
        assert self._pieces is not None
        return next(self._pieces, None)

    async def aclose(self) -> None:
        # A reader that still waits in its thread finds the connection closed.
        self._thread(self._close)

    def _close(self) -> None:
        self._body.close()

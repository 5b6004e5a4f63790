"""The httpx2 clients that openai's clients send with: they let a router answer.

Knows which connections and which router belong to the running loop, and how a call from any thread
reaches the loop thread. Deliberately knows nothing of openai's clients themselves.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from openai import DefaultAsyncHttpxClient

from specroute.config import Config
from specroute.http.idle import look_quickly
from specroute.http.sockets import limits, open_files
from specroute.http.supervisor import Supervisor
from specroute.openai_seam.building import build_request
from specroute.openai_seam.loop_thread import Hold, LoopThread
from specroute.openai_seam.per_loop import PerLoop
from specroute.openai_seam.threaded import Threaded
from specroute.reloading import Watcher
from specroute.router import Router
from specroute.store import Store
from specroute.transport import HINTS, Hints, answer


class Connections:
    """The upstream client and the router, one of each for every loop.

    ``given``: the user's own client, good for one loop. ``parent``: whose connections these are
    (a plain client's copy for another address); kept, since it closes them at its end.
    """

    routers: PerLoop[Router]

    def __init__(self, given: httpx2.AsyncClient | None, parent: Connections | None = None) -> None:
        self.owned = given is None
        self.closed = False
        self.source: Path | Mapping[str, Any] | None = None
        """Where the config comes from, to be read again."""
        self._watcher: Watcher | None = None
        self._watching: asyncio.Task[None] | None = None
        self._watching_in = os.getpid()
        self._parent = parent
        self._upstreams: PerLoop[httpx2.AsyncClient] = (
            parent._upstreams
            if parent is not None
            else PerLoop(lambda: given or _upstream(), again=self.owned, why=_GIVEN)
        )

    def answer_with(
        self, make: Callable[[httpx2.AsyncClient, Store], Router], store: Store
    ) -> None:
        """``make`` gives the router over an upstream client; ``store`` is shared by all of them."""
        upstreams = self._upstreams
        self.routers = PerLoop(lambda: make(upstreams.peek(), store))
        self._store = store

    def reload(self, config: Config, make: Callable[[httpx2.AsyncClient, Store], Router]) -> None:
        """Let routers by ``config`` answer from now on, on every loop; ``make`` as before. Raises
        :class:`~specroute.errors.ConfigError`, and then nothing has changed."""
        upstreams, store = self._upstreams, self._store
        old = self.routers.exchange(
            lambda router: router.successor(config), lambda: make(upstreams.peek(), store)
        )
        for router in old:
            router.retire()

    def watch(self, watcher: Watcher) -> None:
        """Have the config's file watched, on the loop that sends the next request."""
        self._watcher = watcher

    @property
    def upstream(self) -> httpx2.AsyncClient:
        """The running loop's."""
        return self._upstreams.here()

    @property
    def router(self) -> Router:
        """The running loop's, over its upstream client."""
        return self.here()[1]

    def here(self) -> tuple[httpx2.AsyncClient, Router]:
        """The running loop's upstream client, and the router over it."""
        upstream = self._upstreams.here()
        router = self.routers.here()
        if self._watcher is not None and not self._is_watched():
            self._watching_in = os.getpid()
            self._watching = router.supervisor.spawn(
                self._watcher.run(), name="config watcher", apart=True
            )
        return upstream, router

    def _is_watched(self) -> bool:
        """By a task that still runs, in this process."""
        task = self._watching
        return task is not None and not task.done() and self._watching_in == os.getpid()

    @property
    def shown(self) -> httpx2.AsyncClient:
        """An upstream client to look at, from any thread."""
        return self._upstreams.peek()

    @property
    def is_closed(self) -> bool:
        return self.closed or (not self.owned and self.shown.is_closed)

    async def aclose(self) -> None:
        """End what runs, then close the connections, the user's own client included; idempotent."""
        if self.closed:
            return
        self.closed = True
        if hasattr(self, "routers"):
            await self.routers.aclose(Router.aclose)
            await self._store.aclose()
        if self._parent is not None:
            await self._parent.aclose()
        else:
            await self._upstreams.aclose(_close_client)


_GIVEN = "the http_client= that was given"


async def _close_client(client: httpx2.AsyncClient) -> None:
    if not client.is_closed:
        await client.aclose()


class _Nowhere(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """Never asked: ``send`` is taken over."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise RuntimeError("requests are sent through the router")

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        raise RuntimeError("requests are sent through the router")


def _upstream() -> httpx2.AsyncClient:
    """openai's own client, within what this process may open."""
    return look_quickly(DefaultAsyncHttpxClient(limits=limits(open_files())))


def _refused(upstream: object, wanted: str) -> TypeError:
    return TypeError(
        f"http_client must be {wanted}, got {type(upstream).__module__}.{type(upstream).__name__}"
    )


def _shown_timeout(upstream: httpx2.AsyncClient | httpx2.Client | None) -> httpx2.Timeout:
    """What openai takes for the user's own timeout, where it differs from httpx2's default."""
    return httpx2.Timeout(5.0) if upstream is None else upstream.timeout


def _prepared(hints: Hints, options: dict[str, Any], upstream: httpx2.AsyncClient) -> None:
    follow = options.pop("follow_redirects", None)
    hints.follow_redirects = upstream.follow_redirects if follow is None else follow
    hints.send_options = options


class AsyncSeam(httpx2.AsyncClient):
    """Builds requests as the upstream client does, and lets the router answer. A request that did
    not come from a drop-in client goes upstream as it is."""

    def __init__(
        self, upstream: httpx2.AsyncClient | None, parent: AsyncSeam | None = None
    ) -> None:
        if upstream is not None and not isinstance(upstream, httpx2.AsyncClient):
            raise _refused(
                upstream,
                "an httpx2.AsyncClient (openai.DefaultAsyncHttpxClient or "
                "openai.DefaultAioHttpClient make one)",
            )
        self.connections: Connections = Connections(
            upstream, None if parent is None else parent.connections
        )
        timeout = parent.timeout if parent is not None else _shown_timeout(upstream)
        self._parent = parent
        super().__init__(transport=_Nowhere(), timeout=timeout)

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        upstream = self.connections.shown
        return upstream.build_request(*args, **kwargs) if args else build_request(upstream, kwargs)

    def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> Coroutine[Any, Any, httpx2.Response]:
        hints = request.extensions.get(HINTS)
        connections = self.connections
        if hints is None:
            return connections.upstream.send(request, stream=stream, **options)
        if connections.closed:
            raise RuntimeError(CLOSED)
        upstream, router = connections.here()
        if not connections.owned and upstream.is_closed:
            raise RuntimeError(CLOSED)
        _prepared(hints, options, upstream)
        return answer(router, request, hints, stream=stream)

    @property
    def is_closed(self) -> bool:
        return self.connections.is_closed

    async def aclose(self) -> None:
        await self.connections.aclose()

    def __del__(self) -> None:
        connections: Connections | None = getattr(self, "connections", None)
        if connections is None or not connections.owned or connections.is_closed:
            return
        if self._parent is not None:
            return  # The connections are the parent's.
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # No loop runs: nothing can be awaited any more.
        if not loop.is_closed():
            # Its own: the client's tasks are not to be waited for by themselves.
            Supervisor().spawn(connections.aclose(), name="end of a dropped client")


CLOSED = "Cannot send a request, as the client has been closed."


class SyncSeam(httpx2.Client):
    """The same for ``openai.OpenAI``: the router answers on the process's loop thread, which runs
    from the first call to the close. Any number of threads may call at once."""

    def __init__(self, upstream: httpx2.Client | None, parent: SyncSeam | None = None) -> None:
        if upstream is not None and not isinstance(upstream, httpx2.Client):
            raise _refused(upstream, "an httpx2.Client (openai.DefaultHttpxClient makes one)")
        given = None if upstream is None else Threaded(upstream)
        self.connections: Connections = Connections(
            given, None if parent is None else parent.connections
        )
        self._parent = parent
        self._thread: Hold = parent._thread if parent is not None else Hold()
        timeout = parent.timeout if parent is not None else _shown_timeout(upstream)
        super().__init__(transport=_Nowhere(), timeout=timeout)
        if parent is None:
            finalizer = weakref.finalize(self, _dropped, self._thread, self.connections)
            finalizer.atexit = False  # The thread is a daemon; the sockets end with the process.

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        upstream = self.connections.shown
        return upstream.build_request(*args, **kwargs) if args else build_request(upstream, kwargs)

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> Any:
        if self.is_closed:
            raise RuntimeError(CLOSED)
        hints = request.extensions.get(HINTS)
        connections, thread = self.connections, self._thread.get()

        async def work() -> httpx2.Response:
            upstream = connections.upstream
            if hints is None:
                return await upstream.send(request, stream=stream, **options)
            _prepared(hints, options, upstream)
            if not isinstance(request.stream, httpx2.AsyncByteStream):
                request.stream = _Uploaded(request.stream)
            return await answer(connections.router, request, hints, stream=stream)

        response = thread.call(work)
        if not isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Downloaded(response.stream, thread)
        return response

    def run(self, work: Callable[[Router], Any]) -> Any:
        """Await ``work(router)`` on the loop thread."""
        if self.is_closed:
            raise RuntimeError(CLOSED)
        connections = self.connections

        async def awaited() -> Any:
            return await work(connections.router)

        return self._thread.get().call(awaited)

    @property
    def is_closed(self) -> bool:
        return self.connections.is_closed

    def close(self) -> None:
        """End what runs, close the connections and let go of the thread; idempotent."""
        if self.connections.closed:
            return
        self._thread.end(self.connections.aclose)


def _dropped(thread: Hold, connections: Connections) -> None:
    thread.end_soon(connections.aclose)


class _Uploaded(httpx2.AsyncByteStream):
    """A body that a caller's iterator gives, read in worker threads: it may take its time."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces: Iterator[bytes] = iter(self._body)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


class _Downloaded(httpx2.SyncByteStream):
    """A body that arrives on the loop thread, read from any other."""

    def __init__(self, body: Any, thread: LoopThread) -> None:
        self._body = body
        self._thread = thread
        self._pieces: AsyncIterator[bytes] = aiter(body)

    @property
    def elapsed(self) -> Any:
        return getattr(self._body, "elapsed", None)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._thread.call(self._next)) is not None:
            yield piece

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)

    def close(self) -> None:
        if not self._thread.over:  # Else the client's end has ended this, too.
            self._thread.call(self._body.aclose)

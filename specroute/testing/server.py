"""The fault server: a loopback socket, HTTP/1.1, a toy model behind it, and a record of it all.

Knows connections and how to run in the caller's loop or in a thread of its own. Deliberately knows
no fault by name; what a request meets is the script's matter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from specroute.reference.access_log import AccessLog, Record
from specroute.reference.backend import Backend
from specroute.reference.options import Options
from specroute.reference.pace import Pace
from specroute.reference.script import Script as Table
from specroute.reference.server import Server
from specroute.testing.exchange import Exchange, Request, now
from specroute.testing.script import Rule, Script, name_of

DEFAULT_ANSWER = (
    "The harbour wakes before the town does. Boats come in, one after another, and the gulls "
    "argue over what is left. By noon the quay is dry again: nets are mended, coffee is poured, "
    "and somebody tells the old story of the storm, a little longer every year."
)
"""What the toy model answers unless told otherwise."""


class FaultServer:
    """An OpenAI-format server on loopback that fails as the script says, and is healthy otherwise.

    >>> with FaultServer(faults.status(500), answer="Hello there.") as server:
    ...     server.base_url
    'http://127.0.0.1:…/v1'

    ``async with`` serves in the caller's event loop; ``with`` in a thread of its own, for programs
    without one. ``rules`` are faults, :class:`On` and :class:`Sometimes`, tried in order; after
    them everything is healthy. ``answer``: the text that every request is answered with, or a whole
    script of the reference server (a mapping, with more texts or probabilities of its own, or any
    backend). It answers to every model name. ``pace``: how long a real model would take, as
    ``"ttft=0.1,tpot=20ms"``. ``api_key``: refuse every other with 401. ``seed``: of all that is
    random. ``options``: more of the reference server's (``prefill``, ``disable``, ``quirks`` …).
    """

    def __init__(
        self,
        *rules: Rule,
        answer: str | Mapping[str, Any] | Backend = DEFAULT_ANSWER,
        pace: Pace | str = "",
        api_key: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(answer, str):
            answer = {"name": "toy", "answers": [{"text": answer, "anywhere": True}]}
        backend = Table(answer) if isinstance(answer, Mapping) else answer
        self._log = AccessLog()
        given: dict[str, Any] = {
            name: frozenset(value) if isinstance(value, list | tuple | set) else value
            for name, value in options.items()
        }
        given["pace"] = Pace.parse(pace) if isinstance(pace, str) else pace
        made = Options(api_key=api_key, seed=seed, any_model=True, **given)
        self._server = Server(backend, made, self._log)
        self._script = Script(rules)
        self._changed = threading.Condition()
        self._count = 0
        self._requests: list[Request] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self.connections = 0
        """Connections accepted so far."""
        self.root = ""
        """``http://127.0.0.1:port``."""

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes."""
        return f"{self.root}/v1"

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in order of arrival."""
        with self._changed:
            return list(self._requests)

    @property
    def bill(self) -> list[Record]:
        """What the toy model counted and charged, one record for each answer that it began."""
        return list(self._log.records)

    @property
    def under_way(self) -> int:
        """Requests whose answer is not over."""
        with self._changed:
            return self._open()

    @property
    def open_connections(self) -> int:
        """Connections that are open now, idle ones included."""
        return len(self._lines)

    def play(self, *rules: Rule) -> None:
        """From now on follow these rules instead."""
        self._script = Script(rules)

    def forget(self) -> None:
        """Drop the records so far, of finished requests."""
        with self._changed:
            self._requests = [r for r in self._requests if r.ended is None]
        self._log.records.clear()

    async def arrived(self, count: int, timeout: float = 10.0) -> None:
        """Wait for ``count`` requests in all. ``TimeoutError`` says how many came."""
        await self._until(lambda: self._count >= count, timeout, lambda: f"{self._count} came")

    async def idle(self, timeout: float = 10.0) -> None:
        """Wait until no request is under way. ``TimeoutError`` lists those that are."""
        await self._until(lambda: not self._open(), timeout, self._busy)

    def wait_until_idle(self, timeout: float = 10.0) -> None:
        """As :meth:`idle`, for programs without an event loop (``with``)."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open(), timeout):
                raise TimeoutError(f"after {timeout:g} s: {self._busy()}")

    async def _until(
        self, condition: Callable[[], bool], timeout: float, told: Callable[[], str]
    ) -> None:
        changed = asyncio.Event()
        waiter = (asyncio.get_running_loop(), changed)
        with self._changed:
            self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed.clear()
                    with self._changed:
                        if condition():
                            return
                    await changed.wait()
        except TimeoutError:
            with self._changed:
                raise TimeoutError(f"after {timeout:g} s: {told()}") from None
        finally:
            with self._changed:
                self._waiters.remove(waiter)

    def _tell(self) -> None:
        self._changed.notify_all()
        for loop, event in self._waiters:
            if loop is self._loop:
                event.set()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def _open(self) -> int:
        return sum(r.ended is None for r in self._requests)

    def _busy(self) -> str:
        left = [f"{r.number} {r.path} ({r.fault})" for r in self._requests if r.ended is None]
        return f"still under way: {', '.join(left)}"

    # Running

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        ready: list[BaseException | None] = []
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(ready, started)), name="fault-server", daemon=True
        )
        self._thread.start()
        started.wait()
        if ready and ready[0] is not None:
            raise ready[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        assert self._thread is not None
        self._thread.join(10)

    async def _live(self, ready: list[BaseException | None], started: threading.Event) -> None:
        self._end = asyncio.Event()
        try:
            await self._start()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            ready.append(error)
            return
        finally:
            started.set()
        await self._end.wait()
        await self._stop()

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._running = self._server.running()
        await self._running.__aenter__()
        self._socket = await self._loop.create_server(
            lambda: _Line(self), "127.0.0.1", 0, backlog=1024
        )
        self.root = f"http://127.0.0.1:{self._socket.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._socket.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for line in list(self._lines):
            line.transport.abort()
        await self._socket.wait_closed()
        while self._lines:
            self._closed.clear()
            await self._closed.wait()
        await self._running.__aexit__(None, None, None)

    # Serving

    def _accept(self, line: _Line, head: bytes, body: bytes) -> None:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        parts = urlsplit(target)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (each.partition(":") for each in rest)
        }
        with self._changed:
            self._count += 1
            request = Request(
                self._count, method, parts.path, parts.query, headers, body, None, now()
            )
            fault = self._script.choose(request)
            request.fault = name_of(fault)
            self._requests.append(request)
            self._tell()
        exchange = Exchange(request, line, self._server.app)
        line.task = self._loop.create_task(self._run(exchange, line, fault))
        self._tasks.add(line.task)
        line.task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: Exchange, line: _Line, fault: Any) -> None:
        request = exchange.request
        try:
            await fault(exchange)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception:
            line.transport.abort()
            raise
        finally:
            self._over(request, left=line.gone.is_set() and exchange.keep)
        if not exchange.keep:
            return
        self._loop.call_soon(line.serve)

    def _over(self, request: Request, *, left: bool) -> None:
        with self._changed:
            request.ended, request.left = now(), left
            self._tell()


class _Line(asyncio.Protocol):
    """One connection: requests in, one after another."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._buffer = b""
        self.gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(0)  # drain() is then over when everything has left.
        self._server.connections += 1
        self._server._lines.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._writable.set()
        self._server._lines.discard(self)
        self._server._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def write(self, data: bytes) -> None:
        if self.gone.is_set() or self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()
        await asyncio.sleep(0)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.serve()

    def serve(self) -> None:
        """Answer the next request that is there in full."""
        if self.gone.is_set() or (self.task is not None and not self.task.done()):
            return
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        body: bytes | None
        if b"\r\ntransfer-encoding: chunked" in lower:
            body, rest = _chunked(rest)
        else:
            at = lower.find(b"\r\ncontent-length:")
            length = int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            body, rest = (rest[:length], rest[length:]) if len(rest) >= length else (None, rest)
        if body is None:
            return
        self._buffer = rest
        self._server._accept(self, head, body)


def _chunked(data: bytes) -> tuple[bytes | None, bytes]:
    """(a chunked body, what follows it); ``None`` while it is not there in full."""
    out, rest = b"", data
    while True:
        size, line, rest = rest.partition(b"\r\n")
        if not line:
            return None, data
        length = int(size.split(b";")[0], 16)
        if len(rest) < length + 2:
            return None, data
        out, rest = out + rest[:length], rest[length + 2 :]
        if not length:
            return out, rest

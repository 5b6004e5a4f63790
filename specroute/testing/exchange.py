"""One request at the fault server, the healthy answer to it, and every byte that goes back.

Knows how an answer is framed and how a connection is broken; deliberately not which request meets
which fault (``script``) nor what the toy model says.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from specroute.reference.call import Message, Scope

App = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


@dataclass(slots=True)
class Request:
    """One request as it came, and what became of it. Times are ``time.monotonic()``'s."""

    number: int
    """Counted from 1 over all requests."""
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = field(repr=False)
    fault: str | None
    """The fault's name, ``None`` for a healthy answer."""
    arrived: float
    ended: float | None = None
    """When its answer was over or its connection gone; ``None`` while it is under way."""
    left: bool = False
    """The client closed the connection before its answer was complete."""

    @property
    def json(self) -> Any:
        """The body, decoded; ``{}`` for an empty one. ``ValueError`` where it is no JSON."""
        return json.loads(self.body) if self.body else {}

    @property
    def streamed(self) -> bool:
        """Whether events were asked for."""
        try:
            body = self.json
        except ValueError:
            return False
        return isinstance(body, dict) and body.get("stream") is True


class Fault(Protocol):
    """What is done to one request. Write one of your own as a class or an ``async def``; a
    function's ``__name__`` is its name in :attr:`Request.fault`."""

    async def __call__(self, exchange: Exchange, /) -> None:
        """Answer ``exchange``, or don't. Cancelled when the server stops."""
        ...


class Line(Protocol):
    """The connection under an exchange."""

    gone: asyncio.Event
    transport: asyncio.Transport

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class Answer:
    """The toy model's own answer: ``status``, ``headers``, and the body in pieces."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._begun = asyncio.Event()
        self._over = False

    @property
    def content_type(self) -> str:
        """The ``content-type`` header, "" if there is none."""
        return next((v for k, v in self.headers if k == "content-type"), "")

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return "event-stream" in self.content_type

    async def send(self, message: Message) -> None:
        """Take one ASGI message from the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]
            ]
            self._begun.set()
            return
        if message.get("body"):
            await self._pieces.put(message["body"])
        if not message.get("more_body"):
            await self._pieces.put(None)

    async def begun(self) -> None:
        """Wait for status and headers."""
        await self._begun.wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as the application sends it."""
        while not (self._over and self._pieces.empty()):
            piece = await self._pieces.get()
            if piece is None:
                return
            yield piece

    def over(self) -> None:
        """The application has ended, with or without the end of an answer."""
        self._over = True
        if self._pieces.empty():
            self._pieces.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        """The body event by event, each with its blank line."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for one in whole:
                yield one + b"\n\n"
        if rest:
            yield rest

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([piece async for piece in self.pieces()])


class Exchange:
    """A request and the means to answer it, byte by byte if need be."""

    def __init__(self, request: Request, line: Line, app: App) -> None:
        self.request = request
        self._line = line
        self._app = app
        self._chunked = False
        self.keep = True
        """Whether the connection may serve another request."""

    @property
    def gone(self) -> asyncio.Event:
        """Set once the client has closed the connection."""
        return self._line.gone

    @asynccontextmanager
    async def answer(self) -> AsyncIterator[Answer]:
        """What the toy model says to the request (or a changed one). Leaving the block ends it."""
        answer = Answer()
        task = asyncio.ensure_future(self._app(self._scope(), self._receiver(), answer.send))
        task.add_done_callback(lambda _: answer.over())
        begun = asyncio.ensure_future(answer.begun())
        try:
            await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                raise ConnectionAbortedError("the client left before the answer began")
            yield answer
        finally:
            begun.cancel()
            task.cancel()
            await asyncio.wait([task, begun])

    def _scope(self) -> Scope:
        request = self.request
        host, port = self._line.transport.get_extra_info("peername")[:2]
        return {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query.encode(),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in request.headers.items()],
            "client": (host, port),
        }

    def _receiver(self) -> Callable[[], Awaitable[Message]]:
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": self.request.body, "more_body": False}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def relay(self, answer: Answer) -> None:
        """Hand a healthy answer on, as it comes."""
        if answer.streamed:
            await self.start(answer.status, answer.headers)
            async for piece in answer.pieces():
                await self.write(piece)
            await self.end()
        else:
            await self.send(answer.status, await answer.body(), answer.headers)

    async def send(
        self,
        status: int,
        body: bytes = b"",
        headers: list[tuple[str, str]] | None = None,
        content_type: str = JSON,
    ) -> None:
        """A whole answer with its length."""
        lines = [*_head(status, headers or [], content_type), f"content-length: {len(body)}"]
        self._line.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await self._line.drain()

    async def start(
        self,
        status: int = 200,
        headers: list[tuple[str, str]] | None = None,
        content_type: str = STREAM,
    ) -> None:
        """Status and headers of an answer in pieces."""
        await self.raw(head(status, headers or [], content_type))
        self.chunked()

    def chunked(self) -> None:
        """:func:`head` has gone out some other way: pieces of the body may follow."""
        self._chunked = True

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        assert self._chunked, "start() comes first"
        if data:
            self._line.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._line.drain()

    async def end(self) -> None:
        """The end of the body, as the protocol has it."""
        self._line.write(b"0\r\n\r\n")
        await self._line.drain()

    async def raw(self, data: bytes) -> None:
        """Any bytes at all."""
        self._line.write(data)
        await self._line.drain()

    async def close(self) -> None:
        """End the connection in good order (FIN)."""
        await self._line.drain()  # What was written leaves first.
        self.keep = False
        self._line.transport.close()

    async def reset(self) -> None:
        """Break the connection (RST)."""
        await self._line.drain()  # What was written leaves first.
        self.keep = False
        sock = self._line.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._line.transport.abort()

    async def wait(self, seconds: float | None = None) -> None:
        """Do nothing for so long (``None``: for ever), or until the client has left."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            pass


def head(status: int, headers: list[tuple[str, str]], content_type: str) -> bytes:
    """The head of a chunked answer."""
    lines = [*_head(status, headers, content_type), "transfer-encoding: chunked", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _head(status: int, headers: list[tuple[str, str]], content_type: str) -> list[str]:
    own = [(k, v) for k, v in headers if k not in ("content-length", "transfer-encoding")]
    if not any(k == "content-type" for k, _ in own):
        own.append(("content-type", content_type))
    return [
        f"HTTP/1.1 {status} {'OK' if status < 300 else 'Error'}",
        *(f"{k}: {v}" for k, v in own),
    ]


def now() -> float:
    """The clock of :class:`Request`."""
    return time.monotonic()

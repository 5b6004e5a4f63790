"""A scripted loopback HTTP server: the test's own coroutine decides every byte and when it goes.

Knows sockets and HTTP/1.1 framing only, so that a test can cut, stall, or break an answer anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, connection: _Connection, head: bytes, body: bytes) -> None:
        self._connection = connection
        line, *rest = head.decode("latin-1").split("\r\n")
        self.method, target, _ = line.split(" ", 2)
        parts = urlsplit(target)
        self.path, self.query = parts.path, dict(parse_qsl(parts.query))
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (header.partition(":") for header in rest)
        }
        self.body = body
        self.answered = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def gone(self) -> asyncio.Event:
        """Set when the client has closed the connection."""
        return self._connection.gone

    async def send(
        self,
        status: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:
        """A whole answer with its length."""
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self._connection.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.answered = True

    async def json_answer(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send(status, json.dumps(value).encode(), headers)

    async def start(
        self,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        kind: str = "text/event-stream; charset=utf-8",
    ) -> None:
        """The headers of a chunked answer."""
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-type: {kind}",
            "transfer-encoding: chunked",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self._connection.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def piece(self, data: bytes) -> None:
        """Some bytes of a chunked answer, in a turn of their own."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._connection.drain()

    async def finish(self) -> None:
        self._connection.write(b"0\r\n\r\n")
        self.answered = True

    def cut(self) -> None:
        """Drop the connection."""
        self._connection.transport.abort()

    async def stream(
        self, pieces: Iterable[bytes], headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole chunked answer."""
        await self.start(headers=headers)
        for piece in pieces:
            await self.piece(piece)
        await self.finish()


class _Connection(asyncio.Protocol):
    def __init__(self, server: Loopback) -> None:
        self.server = server
        self.buffer = b""
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections += 1
        self.server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()
        self.server.open.discard(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        await self.writable.wait()
        await asyncio.sleep(0)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._serve()

    def _serve(self) -> None:
        if self.task is not None and not self.task.done():
            return
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        body: bytes | None
        if b"transfer-encoding: chunked" in lower:
            body, rest = _chunked(rest)
        else:
            at = lower.find(b"content-length:")
            length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            body, rest = (rest[:length], rest[length:]) if len(rest) >= length else (None, rest)
        if body is None:
            return
        self.buffer = rest
        exchange = Exchange(self, head, body)
        self.server.seen.append(exchange)
        self.server.arrived.set()
        self.task = asyncio.get_running_loop().create_task(self._run(exchange))
        self.server.tasks.add(self.task)
        self.task.add_done_callback(self.server.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        await self.server.handler(exchange)
        asyncio.get_running_loop().call_soon(self._serve)


def _chunked(data: bytes) -> tuple[bytes | None, bytes]:
    out = b""
    while True:
        size, line, rest = data.partition(b"\r\n")
        if not line:
            return None, data
        length = int(size, 16)
        if len(rest) < length + 2:
            return None, data
        out, data = out + rest[:length], rest[length + 2 :]
        if length == 0:
            return out, data


class Loopback:
    """``async with Loopback(handler) as server``: serves on a free port until the block ends.

    ``seen`` holds every request (``arrived`` is set by the first), ``connections`` counts the
    connections, ``open`` holds those still open.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.seen: list[Exchange] = []
        self.arrived = asyncio.Event()
        self.connections = 0
        self.open: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.root + "/v1"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        self._server.close()
        for connection in list(self.open):
            connection.transport.abort()
        await self._server.wait_closed()


def completion(text: str = "Hello there", **fields: Any) -> dict[str, Any]:
    """A whole chat answer."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764400000,
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        **fields,
    }


def event(value: Any) -> bytes:
    """One ``data:`` event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def chunk(
    text: str | None = None, *, finish: str | None = None, role: str | None = None, **fields: Any
) -> bytes:
    """One chat chunk, as an event."""
    delta: dict[str, Any] = {}
    if role is not None:
        delta["role"] = role
    if text is not None:
        delta["content"] = text
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1764400000,
            "model": "served-model",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            **fields,
        }
    )


def chunks(*texts: str) -> list[bytes]:
    """A whole streamed answer."""
    return [
        chunk("", role="assistant"),
        *(chunk(text) for text in texts),
        chunk(finish="stop"),
        DONE,
    ]

"""A loopback proxy that does to chosen requests what the worst of servers do.

Knows HTTP/1.1 as far as two programs of ours speak it. Which request meets which fault is a
function that is passed in; everything else passes through untouched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import httpx2


@dataclass(frozen=True)
class Fault:
    """``kind``: ``status`` (with ``status``), ``text`` (200 with ``value`` as the body), ``reset``,
    ``late`` (passed on after ``value`` seconds), ``hang`` (accepted, never answered), ``cut`` (``after`` events, then the connection breaks),
    ``silence`` (``after`` events, then nothing), ``edit`` (``value`` changes the JSON answer)."""

    kind: str
    status: int = 500
    value: Any = None
    after: int = 0


Judge = Callable[[str, Mapping[str, Any], int], Fault | None]
"""(path, body, how many such requests came before) to a fault; ``None``: pass it through."""


class Proxy:
    """Listens while it is entered. ``asked``: (path, body) of every request so far."""

    def __init__(self, upstream: str, judge: Judge) -> None:
        self._upstream = upstream
        self.judge = judge
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(timeout=None)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()
        await self._client.aclose()

    def count(self, wanted: Callable[[str, Mapping[str, Any]], bool]) -> int:
        return sum(wanted(path, body) for path, body in self.asked)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        size = next((int(v) for k, v in headers.items() if k.lower() == "content-length"), 0)
        content = await reader.readexactly(size)
        body = json.loads(content) if content else {}
        fault = self.judge(path, body, len(self.asked))
        self.asked.append((path, body))
        if fault is not None and fault.kind == "late":
            await asyncio.sleep(fault.value)
        if fault is not None and fault.kind == "hang":
            await reader.read()
            return False
        if fault is not None and fault.kind == "reset":
            writer.transport.abort()
            return False
        if fault is not None and fault.kind in ("status", "text"):
            text = fault.value if fault.kind == "text" else '{"error": {"message": "no"}}'
            status = fault.status if fault.kind == "status" else 200
            await _reply(writer, status, text.encode())
            return True
        url = self._upstream.removesuffix("/v1") + path
        kept = {k: v for k, v in headers.items() if k.lower() not in ("host", "content-length")}
        async with self._client.stream(method, url, content=content, headers=kept) as answer:
            shown = {k: v for k, v in answer.headers.items() if k == "x-request-id"}
            kind = answer.headers.get("content-type", "")
            if "event-stream" not in kind:
                data = await answer.aread()
                if fault is not None and fault.kind == "edit":
                    value = json.loads(data)
                    data = json.dumps(fault.value(value) or value).encode()
                await _reply(writer, answer.status_code, data, shown)
                return True
            return await self._stream(answer, kind, shown, fault, reader, writer)

    async def _stream(
        self,
        answer: httpx2.Response,
        kind: str,
        shown: Mapping[str, str],
        fault: Fault | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        lines = [f"{k}: {v}" for k, v in shown.items()]
        top = ["HTTP/1.1 200 OK", f"content-type: {kind}", "transfer-encoding: chunked", *lines]
        writer.write("\r\n".join([*top, "", ""]).encode())
        sent, rest = 0, b""
        async for piece in answer.aiter_bytes():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if fault is not None and fault.kind in ("cut", "silence") and sent == fault.after:
                    await writer.drain()
                    if fault.kind == "silence":
                        await reader.read()
                    writer.transport.abort()
                    return False
                whole = event + b"\n\n"
                writer.write(b"%x\r\n%b\r\n" % (len(whole), whole))
                sent += 1
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _reply(
    writer: asyncio.StreamWriter, status: int, data: bytes, headers: Mapping[str, str] = {}
) -> None:
    lines = [f"{k}: {v}" for k, v in headers.items()]
    top = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(data)}"]
    writer.write("\r\n".join([*top, *lines, "", ""]).encode() + data)
    await writer.drain()

"""One HTTP request under way: reading its body, answering, refusing, and noticing that it was left.

Knows ASGI and what every endpoint has in common; deliberately not what is asked or answered.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from specroute.reference.access_log import AccessLog, Record
from specroute.reference.answer import dumps, event
from specroute.reference.batching import Outbox
from specroute.reference.errors import Refusal

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 32 * 2**20
_JSON = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Call:
    """One request under way: its body, its record, and the way back."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, log: AccessLog) -> None:
        self.scope, self._receive, self._send, self._log = scope, receive, send, log
        self.arrived = asyncio.get_running_loop().time()
        self.id = uuid.uuid4().hex
        host, port = scope.get("client") or ("", 0)
        self.record = Record(
            id=f"req_{self.id}", time=time.time(), path=scope["path"], connection=f"{host}:{port}"
        )
        self.outbox = Outbox()
        self.started = False
        """Whether status and headers have been sent."""
        self._watcher: asyncio.Task[None] | None = None

    async def body(self) -> dict[str, Any]:
        """The JSON object that was sent; raises :class:`Refusal` for anything else."""
        data = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            data += message.get("body", b"")
            if len(data) > MAX_BODY:
                raise Refusal(413, f"the body is larger than {MAX_BODY} bytes; send less")
            if not message.get("more_body"):
                break
        try:
            body = json.loads(data)
            if b"\\ud" in data or b"\\uD" in data:
                json.dumps(body, ensure_ascii=False).encode()  # half a character can't be
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"the body is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal(400, f"expected a JSON object as the body, got {type(body).__name__}")
        return body

    def watch(self) -> None:
        """From now on, close the outbox when the client leaves. The body must have been read."""
        self._watcher = asyncio.ensure_future(self._gone())

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.outbox.close()

    def unwatch(self) -> None:
        """Stop watching."""
        if self._watcher:
            self._watcher.cancel()

    async def start(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        """Send status and headers."""
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"x-request-id", self.record.id.encode()), *headers],
            }
        )

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, data: bytes) -> None:
        """Send a whole JSON answer, after logging it."""
        self.log(status)
        await self.start(status, _JSON, (b"content-length", str(len(data)).encode()))
        await self.write(data, more=False)

    def log(self, status: int) -> None:
        """Write the record, which is complete now; once."""
        if self.record.status == 0:
            self.record.status = status
            self.record.seconds = asyncio.get_running_loop().time() - self.arrived
            self._log.add(self.record)


Handler = Callable[[Call], Awaitable[None]]


class Endpoint:
    """One route: method, key, refusals and the record, around a handler."""

    def __init__(
        self,
        handler: Handler,
        method: str | None,
        log: AccessLog,
        *,
        rtt: float = 0.0,
        check: Callable[[Scope], None] | None = None,
    ) -> None:
        """``method`` ``None`` is any; ``check`` refuses a request before it is read."""
        self._handler, self._method, self._log = handler, method, log
        self._rtt, self._check = rtt, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = Call(scope, receive, send, self._log)
        try:
            if self._method not in (None, scope["method"]):
                raise Refusal(
                    405, f"{scope['path']}: expected {self._method}, got {scope['method']}"
                )
            if self._check is not None:
                self._check(scope)
            await self._handler(call)
        except Refusal as refusal:
            await call.outbox.until(call.arrived + self._rtt)
            await self._refuse(call, refusal)
        except (ClientGone, asyncio.CancelledError) as gone:
            call.record.cancelled = True
            call.log(499)
            if isinstance(gone, asyncio.CancelledError):
                raise
        except Exception as error:
            await self._refuse(call, Refusal(500, f"{type(error).__name__}: {error}"))
            raise  # a fault of this server: uvicorn shows the traceback
        finally:
            call.unwatch()

    async def _refuse(self, call: Call, refusal: Refusal) -> None:
        call.record.error = refusal.message
        if call.started:  # in the middle of a stream
            call.log(refusal.status)
            await call.write(event(refusal.body()), more=False)
        else:
            await call.reply(refusal.status, dumps(refusal.body()))

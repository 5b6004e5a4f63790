"""One request's way: ASGI in, the router, ASGI out.

Knows how a request is read, how errors look to an OpenAI client, and that a caller who has gone
ends what was started for it. Knows no keys and no counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from math import ceil, isfinite
from typing import Any

from specroute import errors
from specroute.config import PolicyConfig, parse_policy
from specroute.exchange import Reply, RouterRequest
from specroute.http import wire
from specroute.reporting import FIELD, ReportHandle, to_wire
from specroute.request import CHAT, COMPLETIONS
from specroute.router import Router

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REPORT_HEADER = "x-specroute-report"
"""The report's id: ``GET /v1/specroute/reports/{id}`` shows it."""
POLICY_HEADER = "x-specroute-policy"
"""A preset's name, for this request."""
MOST_BODY = 64 * 2**20
"""Bytes of a request's body."""

_DROPPED = frozenset(
    {"connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding"}
)


UPLOAD_S = 60.0
"""Seconds between two pieces of a request's body: a caller who stops holds a place."""


class TooSlow(Exception):
    """Nothing more of the body came for :data:`UPLOAD_S`."""


class TooLarge(Exception):
    """The body passes :data:`MOST_BODY`."""


async def forward(
    router: Router,
    path: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    remember: Callable[[ReportHandle], None],
    over: asyncio.Event,
) -> None:
    """Answer one request below the API's base by ``router``. ``remember`` is given the report of a
    chat or completions call as soon as it is there. What has no end when ``over`` is set is cut,
    and the caller is told."""
    body = await read_body(receive)
    if body is None:
        return
    sent = _Sent(send)
    work = asyncio.ensure_future(_answer(router, path, scope, body, sent, remember))
    gone = asyncio.ensure_future(_gone(receive))
    cut = asyncio.ensure_future(over.wait())
    try:
        done, _ = await asyncio.wait({work, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (gone, cut, work):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    if done == {cut}:
        await sent.cut()


class _Sent:
    """A way to the caller, and how far an answer has gone on it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = self._ended = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self._begun = True
        self._ended = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    async def cut(self) -> None:
        """End the answer with an error, if it has no end yet."""
        said = "the proxy is ending, and the time that requests under way had is over"
        content = {"error": {"message": said, "type": "server_error", "code": "proxy_ending"}}
        if not self._begun:
            await send_error(self, 503, {"retry-after": "1"}, content)
        elif not self._ended:
            event = b"data: " + json.dumps(content).encode() + b"\n\n"
            await self({"type": "http.response.body", "body": event})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive) -> bytes | None:
    """The request's body; ``None`` if the caller has gone. Raises :class:`TooLarge` and
    :class:`TooSlow`."""
    parts, size = [], 0
    while True:
        try:
            async with asyncio.timeout(UPLOAD_S):
                message = await receive()
        except TimeoutError:
            raise TooSlow from None
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            raise TooLarge
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(
    router: Router,
    path: str,
    scope: Scope,
    body: bytes,
    send: Send,
    remember: Callable[[ReportHandle], None],
) -> None:
    headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
    by_name = {k.lower(): v for k, v in headers}
    try:
        request = RouterRequest(
            method=scope["method"],
            path=path,
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=[(k, v) for k, v in headers if not k.lower().startswith("x-specroute-")],
            body=body or None,
            whole=_whole(body, path),
            policy=_policy(by_name.get(POLICY_HEADER)),
        )
        reply = await router.handle(request)
    except errors.SpecRouteError as error:
        await send_error(send, *shown(error, router.redact))
        return
    if reply.handle is not None:
        remember(reply.handle)
    if isinstance(reply.body, bytes):
        await _send_whole(send, reply, reply.body)
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": _head(reply)})
    try:
        async for piece in reply.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except errors.SpecRouteError as error:
        # The status has gone out: an error event, which OpenAI's clients raise, and no [DONE].
        _, _, content = shown(error, router.redact)
        event = b"data: " + json.dumps(content).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})
    finally:
        await reply.body.aclose()
    await send({"type": "http.response.body", "body": b""})


async def _send_whole(send: Send, reply: Reply, body: bytes) -> None:
    if reply.data is not None and reply.handle is not None:
        body = wire.splice_field(body, FIELD, wire.dumps(to_wire(reply.handle.report)))
    head = [*_head(reply), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _head(reply: Reply) -> list[tuple[bytes, bytes]]:
    head = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in reply.headers.multi_items()
        if name.lower() not in _DROPPED and name.lower() != "set-cookie"
    ]
    if reply.handle is not None:
        head.append((REPORT_HEADER.encode(), reply.handle.report.id.encode()))
    return head


def _whole(body: bytes, path: str) -> bool:
    """Whether the answer is to be read before it is sent on: unless a stream is asked for.

    :class:`RequestError` for a chat or completions call that is no JSON.
    """
    try:
        data = json.loads(body) if body else None
    except ValueError as error:
        if path.endswith((CHAT, COMPLETIONS)):
            raise errors.RequestError(f"the request's body is not JSON: {error}") from error
        return False
    return not (isinstance(data, dict) and data.get("stream") is True)


def _policy(name: str | None) -> PolicyConfig | None:
    if name is None:
        return None
    try:
        return parse_policy(name, POLICY_HEADER)
    except errors.ConfigError as error:
        raise errors.RequestError(str(error), param=POLICY_HEADER) from error


def shown(
    error: errors.SpecRouteError, redact: Callable[[str], str] = str
) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """(status, headers, body) of an error, as an OpenAI-format API would answer."""
    status, kind = 502, "upstream_error"
    code: str | None = type(error).__name__
    param = None
    headers: dict[str, str] = {}
    if isinstance(error, errors.StatusError):
        status, headers = (
            error.status,
            {
                name: value
                for name, value in error.headers.items()
                if name.lower() in ("retry-after", "retry-after-ms", "x-request-id")
            },
        )
    elif isinstance(error, errors.RequestError):
        status, kind, param = error.status, "invalid_request_error", error.param
        code = error.code
    elif isinstance(error, errors.LimitReached | errors.AllCooling):
        status, kind = (429 if isinstance(error, errors.LimitReached) else 503), "rate_limit"
        code = getattr(error, "code", code)
        if error.wait_s is not None and isfinite(error.wait_s):
            headers["retry-after"] = str(ceil(error.wait_s))
    elif isinstance(error, errors.DeadlineExceeded):
        status, kind = 504, "timeout"
    elif isinstance(error, errors.ConfigError):
        status, kind = 500, "config_error"
    message = {"message": redact(str(error)), "type": kind, "param": param, "code": code}
    # Retried already, under the request's deadline: no client should multiply that.
    return status, {"x-should-retry": "false", **headers}, {"error": message}


async def send_error(
    send: Send, status: int, headers: Mapping[str, str], content: Mapping[str, Any]
) -> None:
    """A JSON answer."""
    body = json.dumps(content).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in head.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})

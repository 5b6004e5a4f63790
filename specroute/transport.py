"""The seam: an ``httpx2.AsyncBaseTransport`` whose requests a :class:`~specroute.router.Router`
answers.

Knows how a request and a reply look to httpx2 and which openai error each of ours is. Deliberately
knows nothing of who answers, nor of the client above.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2

from specroute.config import PolicyConfig
from specroute.errors import SpecRouteError
from specroute.exchange import OnReport, Reply, ReplyBody, RouterRequest
from specroute.http import wire
from specroute.openai_errors import translate
from specroute.plain.outgoing import RETRY_COUNT
from specroute.reporting import FIELD, to_wire
from specroute.router import Router

HINTS = "specroute_hints"
"""Where a client leaves its :class:`Hints` in ``request.extensions``."""
RETRIES = "specroute_retries"
PROVIDER = "specroute_provider"
HINT = "specroute_hint"


@dataclass(slots=True)
class Hints:
    """What the client above knows of a request, so that nothing is decoded twice.

    ``path`` is relative to the client's base URL; ``fields`` as in ``RouterRequest``.
    """

    path: str
    fields: Mapping[str, Any] | None
    max_retries: int = 2
    replayable: bool = True
    policy: PolicyConfig | None = None
    on_report: OnReport | None = None
    send_options: Mapping[str, Any] = field(default_factory=dict)
    follow_redirects: bool = True


async def answer(
    router: Router, request: httpx2.Request, hints: Hints, *, stream: bool, splice: bool = False
) -> httpx2.Response:
    """Let ``router`` answer ``request``; read the body unless ``stream``.

    The report of a whole answer is in ``response.json()``; with ``splice`` in its bytes, too.

    What goes wrong is raised as the matching openai error; an error status is a response.
    """
    timeout = request.extensions.get("timeout") or {}
    connect, read = timeout.get("connect"), timeout.get("read")
    direct = router.direct
    if not direct and connect == 5.0 and read == 600.0:
        connect = read = None  # Unset: openai's defaults. The config's count.
    body = getattr(request, "_content", None)
    call = RouterRequest(
        method=request.method,
        path=hints.path,
        body=request.stream if body is None else body,  # type: ignore[arg-type]
        fields=hints.fields,
        connect_s=connect,
        read_s=read,
        max_retries=hints.max_retries,
        replayable=hints.replayable,
        whole=not stream,
        follow_redirects=hints.follow_redirects,
        policy=hints.policy,
        on_report=hints.on_report,
    )
    if direct:
        call.outgoing = request
        call.send_options = hints.send_options
    else:
        call.query = request.url.query.decode("ascii")
        call.headers = request.headers.multi_items()
    started = time.perf_counter()
    try:
        reply = await router.handle(call)
    except SpecRouteError as error:
        raise translate(error, request, router.redactor(call)) from error.__cause__
    if reply.retries and not direct and request.headers.get(RETRY_COUNT) == "0":
        request.headers[RETRY_COUNT] = str(reply.retries)
    if splice and reply.data is not None and reply.handle is not None:
        assert isinstance(reply.body, bytes)
        report = wire.dumps(to_wire(reply.handle.report))
        reply.body, reply.data = wire.splice_field(reply.body, FIELD, report), None
        reply.headers = httpx2.Headers(reply.headers)
        reply.headers["content-length"] = str(len(reply.body))
    response = _Response(reply, request, direct, started, router.redactor(call))
    if not stream and not response.take():
        await response.aread()
    return response


class _Response(httpx2.Response):
    """A reply as httpx2 shows it. Its JSON, where it is an answer, has the report added."""

    def __init__(
        self,
        reply: Reply,
        request: httpx2.Request,
        direct: bool,
        started: float,
        redact: Callable[[str], str],
    ) -> None:
        sent = reply.sent if direct and reply.sent is not None else request
        extensions = dict(reply.extensions)
        # Spares the reader openai's own drain: the connection is settled before [DONE].
        extensions["http_version"] = b"HTTP/2"
        extensions[RETRIES] = reply.retries
        extensions[PROVIDER] = reply.provider
        if reply.handle is not None:
            extensions[FIELD] = reply.handle
        if reply.hint is not None:
            extensions[HINT] = reply.hint
        body = reply.body
        self._data = reply.data
        self._handle = reply.handle
        super().__init__(
            reply.status,
            headers=reply.headers,
            stream=_Bytes(body, started)
            if isinstance(body, bytes)
            else _Arriving(body, sent, started, redact),
            request=sent,
            extensions=extensions,
        )
        self._encoded = reply.encoded

    def json(self, **kwargs: Any) -> Any:
        if self._data is None or kwargs:
            return super().json(**kwargs)
        if self._handle is None:
            return self._data
        return {**self._data, FIELD: to_wire(self._handle.report)}

    def take(self) -> bool:
        """Read a body that is there and needs no decoding; whether it is one."""
        body = self.stream
        if self._encoded or not isinstance(body, _Bytes):
            return False
        if not self.is_closed:
            self._content = body.body
            self._num_bytes_downloaded = len(body.body)
            self.is_closed = self.is_stream_consumed = True
        return True

    async def aread(self) -> bytes:
        self.take()
        return await super().aread()

    def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes]:
        body = self.stream
        if chunk_size is None and not self._encoded and isinstance(body, _Arriving):
            return self._pieces(body)
        return super().aiter_bytes(chunk_size)

    async def _pieces(self, body: _Arriving) -> AsyncGenerator[bytes]:
        """What aiter_bytes() comes to where nothing needs decoding: two generators fewer."""
        if self.is_stream_consumed or self.is_closed:
            async for piece in super().aiter_bytes():  # Its bytes once more, or why not.
                yield piece
            return
        self.is_stream_consumed = True
        try:
            while True:
                try:
                    piece = await body.next()
                except StopAsyncIteration:
                    return
                except SpecRouteError as error:
                    raise body.translated(error) from error.__cause__
                self._num_bytes_downloaded += len(piece)
                yield piece
        finally:
            await self.aclose()


class _Bytes(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """A body that is there."""

    def __init__(self, body: bytes, started: float) -> None:
        self.body = body
        self.elapsed = datetime.timedelta(seconds=time.perf_counter() - started)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body

    def __iter__(self) -> Iterator[bytes]:
        yield self.body


class _Arriving(httpx2.AsyncByteStream):
    """A body still arriving; its errors become openai's here."""

    def __init__(
        self,
        body: ReplyBody,
        request: httpx2.Request,
        started: float,
        redact: Callable[[str], str],
    ) -> None:
        self._body = body
        self._request = request
        self._started = started
        self._redact = redact
        self.next = body.__aiter__().__anext__
        """The next piece, or our error."""
        self.elapsed: datetime.timedelta | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.next()
        except SpecRouteError as error:
            raise self.translated(error) from error.__cause__

    def translated(self, error: SpecRouteError) -> Exception:
        return translate(error, self._request, self._redact)

    async def aclose(self) -> None:
        if self.elapsed is None:
            self.elapsed = datetime.timedelta(seconds=time.perf_counter() - self._started)
        await self._body.aclose()


class SpecRouteTransport(httpx2.AsyncBaseTransport):
    """A transport for any httpx2 client (``AsyncSpecRoute`` uses a shorter way to the same).

    ``base_path`` is the path that the client's URLs start with. Answers with an error status say
    ``x-should-retry: false``, since they have been retried already. The router stays the caller's
    to close.
    """

    def __init__(self, router: Router, *, base_path: str = "/v1") -> None:
        self._router = router
        self._base_path = base_path.rstrip("/")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.partition(b"?")[0].decode("ascii")
        hints = request.extensions.get(HINTS) or Hints(
            path.removeprefix(self._base_path),
            None,
            replayable=hasattr(request, "_content"),
        )
        response = await answer(self._router, request, hints, stream=True, splice=True)
        if response.status_code >= 400:
            response.headers["x-should-retry"] = "false"
        return response

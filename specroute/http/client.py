"""The only HTTP: one client per provider over httpx2.

Knows connections, keys, deadlines and how transport errors become ours (once, here). Deliberately
knows no retries (``http.retry`` rules, the router decides) and nothing of what a target is asked.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from specroute.config import ProviderConfig
from specroute.errors import (
    BadAnswer,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ErrorInBody,
    StatusError,
)
from specroute.http import wire
from specroute.http.deadline import Deadline
from specroute.http.events import EventStream, Ready
from specroute.http.gate import Departure, Gate, Gates, Permits, enter
from specroute.http.idle import look_quickly
from specroute.http.redirects import followed
from specroute.http.reply import Body, OpenReply
from specroute.http.sockets import limits, open_files, out_of_files
from specroute.http.supervisor import Supervisor
from specroute.http.watch import Watch

Headers = Sequence[tuple[str, str]]
_STALE = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)


@dataclass(slots=True)
class Call:
    """One HTTP request to a provider.

    ``path`` is relative to the provider's ``base_url`` (``root=True``: to the server's root, the
    base without its last ``/v1``). ``request``: a request to send as it is instead, its URL and
    credentials included (the plain client's own).
    """

    method: str = "POST"
    path: str = ""
    query: str = ""
    headers: Headers = ()
    content: bytes | AsyncIterable[bytes] | None = None
    root: bool = False
    request: httpx2.Request | None = None
    follow_redirects: bool = True
    send_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to ``httpx2.AsyncClient.send`` (``auth``)."""
    model: str = ""
    purpose: str = "other"
    waits: bool = True
    """What the gates are told: see :class:`~specroute.http.gate.Departure`."""
    built: httpx2.Request | None = field(default=None, repr=False)
    """The request made of the above, kept for another attempt."""


@dataclass(frozen=True, slots=True)
class JsonReply:
    """A whole JSON answer."""

    data: dict[str, Any]
    headers: Mapping[str, str]
    seconds: float
    """From sending to the last byte."""
    request_id: str | None
    status: int = 200


class HttpClient:
    """HTTP to one provider, with its key, its headers and its base URL.

    ``client``: the httpx2 client to send with (shared, never closed here); without one, an own
    one is made on first use. ``profile_auth``: how the key travels, ``bearer | api-key | none``.
    ``gates``: asked before each call, in this order.
    Raises :class:`ConfigError` for a key that can't be a header.
    """

    def __init__(
        self,
        provider: ProviderConfig,
        *,
        client: httpx2.AsyncClient | None = None,
        profile_auth: str = "bearer",
        supervisor: Supervisor | None = None,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.provider = provider
        self._gates = Gates(provider, gates)
        self.supervisor = supervisor or Supervisor()
        self._client = client
        self._owns_client = client is None
        self._owns_supervisor = supervisor is None
        base = httpx2.URL(provider.base_url)
        if base.userinfo:
            raise ConfigError(
                f"providers.{provider.name}.base_url: credentials in a URL are not allowed; "
                "name the key's variable in env_key",
            )
        path = base.raw_path.partition(b"?")[0].rstrip(b"/")
        self._base = base
        self._base_path = path
        self._root_path = path[: -len(b"/v1")] if path.endswith(b"/v1") else path
        self._query = str(httpx2.QueryParams(dict(provider.query))) if provider.query else ""
        self._urls: dict[tuple[str, str, bool], httpx2.URL] = {}
        self._headers = self._own_headers(profile_auth)
        self._own_names = frozenset(name.lower() for name, _ in self._headers)
        self._secrets = provider.secrets

    def __repr__(self) -> str:
        return f"HttpClient({self.provider.name!r}, {wire.show_url(self.provider.base_url)!r})"

    def _own_headers(self, auth: str) -> list[tuple[str, str]]:
        headers = dict(self.provider.headers)
        key = self.provider.api_key
        if key is not None:
            if any(ord(c) < 33 or ord(c) > 126 for c in key):
                raise ConfigError(
                    f"providers.{self.provider.name}: the key in "
                    f"{self.provider.env_key or 'api_key'} has a blank or other character that "
                    "can't be sent (a newline at its end?)"
                )
            if auth == "bearer":
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
                headers["Authorization"] = f"Bearer {key}"
            elif auth == "api-key":
                headers["api-key"] = key
        return list(headers.items())

    def url(self, path: str, query: str = "", *, root: bool = False) -> httpx2.URL:
        """The absolute URL of a path below ``base_url`` (``root``: below the server's root)."""
        cached = self._urls.get((path, query, root))
        if cached is None:
            prefix = self._root_path if root else self._base_path
            raw = prefix + b"/" + path.lstrip("/").encode("ascii", "strict")
            both = "&".join(q for q in (query, self._query) if q)
            cached = self._base.copy_with(raw_path=raw + (b"?" + both.encode() if both else b""))
            if len(self._urls) >= 256:
                self._urls.pop(next(iter(self._urls)))
            self._urls[path, query, root] = cached
        return cached

    @property
    def client(self) -> httpx2.AsyncClient:
        """The httpx2 client that sends."""
        if self._client is None:
            self._client = own_client()
        return self._client

    def _request(self, call: Call) -> httpx2.Request:
        headers = [
            *((k, v) for k, v in call.headers if k.lower() not in self._own_names),
            *self._headers,
        ]
        return httpx2.Request(
            call.method,
            self.url(call.path, call.query, root=call.root),
            headers=headers,
            content=call.content,
        )

    async def send(self, call: Call, deadline: Deadline, *, decode: bool = True) -> OpenReply:
        """Send; return once the headers of the final answer (any status) are there.

        ``decode=False`` leaves a ``Content-Encoding`` as it is. Redirects are followed within the
        same origin; to another one only a GET or HEAD is, without any credentials. Raises
        :class:`ConnectFailed`, :class:`DeadlineExceeded` (before the headers: ``connect``,
        ``first_token`` or ``total``), :class:`BadAnswer` for a refused redirect, and whatever a
        gate refuses the call with.
        """
        gates = self._gates.asked(call.purpose)
        request = call.request
        if request is None:
            request = call.built
            if request is None:
                # One that can't be made passes no gate: nothing is reserved for it.
                request = call.built = self._request(call)
        permits = await self._enter(gates, call, deadline) if gates else None
        watch = Watch(deadline, self.provider.name)
        try:
            response = await self._send_once(request, call, watch)
            if call.follow_redirects and response.has_redirect_location:
                response = await followed(
                    request,
                    response,
                    lambda further: self._send_once(further, call, watch),
                    provider=self.provider.name,
                    credentials=self._own_names,
                )
        except BaseException as error:
            watch.stop()
            if permits is not None:
                permits.settle(None, error)
            raise
        if permits is not None:
            permits.arrived(response.status_code, response.headers)
        body = Body(response, watch, self.provider.name, self.supervisor, decode, permits)
        return OpenReply(response, body, watch)

    async def _enter(self, gates: Sequence[Gate], call: Call, deadline: Deadline) -> Permits:
        content = call.content if isinstance(call.content, bytes) else None
        if call.request is not None:
            content = getattr(call.request, "_content", None)
        departure = Departure(
            self.provider, call.model, call.purpose, content, deadline, call.waits
        )
        return await enter(gates, departure)

    async def _send_once(
        self, request: httpx2.Request, call: Call, watch: Watch
    ) -> httpx2.Response:
        name = self.provider.name
        deadline = watch.deadline
        connect = deadline.remaining("connect")
        if connect <= 0:
            raise watch.exceeded(deadline.limit(None)[1])
        if call.request is None:
            # The other waits are the watch's: it knows which bytes are content.
            request.extensions["timeout"] = {
                "connect": connect if connect < 1e9 else None,
                "read": None,
                "write": None,
                "pool": None,
            }
        sent_at = deadline.clock()
        try:
            with watch:
                return await self.client.send(
                    request, stream=True, follow_redirects=False, **call.send_options
                )
        except httpx2.LocalProtocolError:
            # The original names the offending value, which may be the key.
            raise ConnectFailed(
                f"{name}: the request has an illegal header (a newline in a key or a header?)",
                provider=name,
            ) from None
        except httpx2.ConnectTimeout as error:
            # aiohttp's transport reports a refused connection as a timeout: ask the clock.
            if deadline.clock() - sent_at >= 0.95 * connect:
                raise watch.exceeded(
                    "connect" if connect >= deadline.timeouts.connect else deadline.limit(None)[1]
                ) from error
            raise self._no_connection(request, error) from error
        except httpx2.TimeoutException as error:
            raise watch.exceeded(deadline.limit(None)[1]) from error
        except (httpx2.RequestError, ssl.SSLError) as error:
            raise self._no_connection(request, error) from error
        except RuntimeError as error:
            if not self.client.is_closed:
                raise
            said = f"{name}: the client was closed while this request was under way"
            raise ConnectFailed(said, provider=name) from error

    def _no_connection(self, request: httpx2.Request, error: Exception) -> ConnectFailed:
        detail = str(error) if isinstance(error, httpx2.ConnectError | ssl.SSLError) else ""
        said = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
        if out_of_files(error):
            said = f"this process has the {open_files()} open files it may have: raise ulimit -n"
        return ConnectFailed(
            f"{self.provider.name}: no connection to {wire.show_url(str(request.url))} ({said})",
            provider=self.provider.name,
        )

    async def post_json(
        self,
        path: str,
        payload: Mapping[str, Any],
        deadline: Deadline,
        *,
        purpose: str = "other",
        headers: Mapping[str, str] = {},
        root: bool = False,
        listed: bool = False,
        model: str = "",
    ) -> JsonReply:
        """POST JSON, read a JSON object. No retries, but for a connection found closed.

        ``purpose``: as in :class:`~specroute.types.Attempt`. ``model``: whose call the gates take
        it for, where the payload names none.
        ``listed``: the answer may be a list of objects, and is then ``{"answers": list}``.

        Raises :class:`StatusError` for 4xx/5xx, :class:`ErrorInBody` for an error inside a 200,
        :class:`BadAnswer` for anything that is no JSON object, and what :meth:`send` raises.
        """
        started = deadline.clock()
        reply = await self._send_json(
            self._json_call(path, payload, headers, "application/json", root, purpose, model),
            deadline,
        )
        data = await self._json_in(reply, listed=listed)
        seconds = deadline.clock() - started
        return JsonReply(data, reply.headers, seconds, reply.request_id, reply.status)

    async def post_stream(
        self,
        path: str,
        payload: Mapping[str, Any],
        deadline: Deadline,
        *,
        purpose: str = "other",
        headers: Mapping[str, str] = {},
        root: bool = False,
    ) -> EventStream:
        """POST JSON, read server-sent events; returns once a 2xx's headers are there.

        Retries and raises as :meth:`post_json`. A JSON answer instead of events becomes one chunk.
        """
        reply = await self._send_json(
            self._json_call(path, payload, headers, "text/event-stream", root, purpose), deadline
        )
        kind = reply.headers.get("content-type", "")
        if reply.status >= 300 or "json" in kind or "html" in kind:
            data = await self._json_in(reply)
            wire.check_answer(data, provider=self.provider.name)
            return Ready(reply, self.provider.name, wire.as_chunks(data))
        return EventStream(reply, self.provider.name, self._secrets)

    async def _json_in(self, reply: OpenReply, *, listed: bool = False) -> dict[str, Any]:
        """The JSON object of an answer that is read to its end here."""
        reply.keep()
        try:
            body = await reply.read()
            self._check_status(reply, body)
            read = wire.read_answers if listed else wire.read_object
            data = read(body, provider=self.provider.name, headers=reply.headers)
            self._check_error(data)
        except BaseException as error:
            if isinstance(error, BadAnswer):  # It quotes the body.
                error.args = (wire.redact(str(error), self._secrets),)
            reply.settle(None, error)
            raise
        reply.settle(wire.usage_in(data))
        return data

    async def _send_json(self, call: Call, deadline: Deadline) -> OpenReply:
        """Send once, and again if the connection broke before any answer: servers close kept-alive
        connections without a word (llama.cpp does after every stream)."""
        try:
            return await self.send(call, deadline)
        except ConnectFailed as error:
            if not isinstance(error.__cause__, _STALE):
                raise
        call.built = None
        return await self.send(call, deadline)

    def _json_call(
        self,
        path: str,
        payload: Mapping[str, Any],
        headers: Mapping[str, str],
        accept: str,
        root: bool,
        purpose: str,
        model: str = "",
    ) -> Call:
        return Call(
            "POST",
            path,
            headers=[
                ("Accept", accept),
                ("Accept-Encoding", "identity"),
                ("Content-Type", "application/json"),
                ("User-Agent", "specroute"),
                *headers.items(),
            ],
            content=wire.dumps(payload),
            root=root,
            model=str(payload.get("model") or model),
            purpose=purpose,
        )

    def _check_status(self, reply: OpenReply, body: bytes) -> None:
        if reply.status < 300:
            return
        raise self.status_error(reply.status, reply.headers, body)

    def status_error(self, status: int, headers: Mapping[str, str], body: bytes) -> StatusError:
        """The error for a status, with a note about ``base_url`` where that may be the cause."""
        error = StatusError(
            wire.redact(
                f"{self.provider.name}: {wire.status_message(status, body)}", self._secrets
            ),
            provider=self.provider.name,
            status=status,
            headers=headers,
            body=wire.redact(body.decode("latin-1"), self._secrets).encode("latin-1"),
        )
        if status in (404, 405):
            error.add_note(wire.base_url_hint(self.provider.base_url))
        return error

    def _check_error(self, data: Mapping[str, Any]) -> None:
        error = wire.error_in(data)
        if error is not None:
            error = wire.redact_value(error, self._secrets)
            raise ErrorInBody(
                f"{self.provider.name}: "
                + wire.error_message(error, "an error came inside a 200 answer"),
                provider=self.provider.name,
                body=error,
            )

    async def aclose(self) -> None:
        """Close what this client made itself; idempotent."""
        if self._owns_supervisor:
            await self.supervisor.aclose()
        if self._owns_client and self._client is not None:
            await self._client.aclose()


def own_client() -> httpx2.AsyncClient:
    """A client of our own, within what the process may open."""
    return look_quickly(httpx2.AsyncClient(limits=limits(open_files()), timeout=None))


__all__ = [
    "BadAnswer",
    "Call",
    "DeadlineExceeded",
    "EventStream",
    "HttpClient",
    "JsonReply",
    "OpenReply",
]

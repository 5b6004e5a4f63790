"""What leaves for a provider: the caller's request, with its own headers and without another's.

Knows which headers belong to one hop or one account, and openai's count of retries. Knows no
answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence

import httpx2

from specroute.exchange import RouterRequest
from specroute.http import wire
from specroute.http.client import Call

# Headers that belong to one hop, one host or one account, and so never reach another.
_OWN_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
        "transfer-encoding",
        "x-api-key",
        "x-goog-api-key",
    }
)
RETRY_COUNT = "x-stainless-retry-count"
"""openai's header that says how often a request was sent before."""


def body_for(request: RouterRequest, asked: str, model: str, own_usage: bool) -> bytes:
    """A text call's body under the target's own name for the model; ``own_usage``: usage is asked
    for, too."""
    body = request.body
    assert isinstance(body, bytes)
    if model != asked:
        body = wire.replace_model(body, asked, model)
    if own_usage:
        body = wire.splice_field(body, "stream_options", b'{"include_usage":true}')
    if body is not request.body and request.outgoing is not None:
        request.body = body
        rewrite(request)
    return body


def call_for(request: RouterRequest, model: str | None, body: bytes | None = None) -> Call:
    """The call that takes ``request`` to a provider. ``model``: its name there, of a text call.
    ``body``: in the place of the request's own."""
    purpose = "other" if model is None else "plain"
    if request.outgoing is not None:
        return Call(
            request=request.outgoing,
            follow_redirects=request.follow_redirects,
            send_options=request.send_options,
            model=model or "",
            purpose=purpose,
        )
    headers = forwardable(request.headers)
    content = request.body if body is None else body
    if content is not None and not isinstance(content, bytes):
        # A body that is not ours keeps the length it was announced with.
        headers += [(k, v) for k, v in request.headers if k.lower() == "content-length"]
        content = _Pieces(content)
    return Call(
        method=request.method,
        path=request.path,
        query=request.query,
        headers=headers,
        content=content,
        follow_redirects=request.follow_redirects,
        model=model or "",
        purpose=purpose,
    )


def rewrite(request: RouterRequest) -> None:
    """The body changed: a request to be sent as it is needs the new one."""
    old = request.outgoing
    if old is not None:
        headers = [(k, v) for k, v in old.headers.multi_items() if k.lower() != "content-length"]
        request.outgoing = httpx2.Request(
            old.method,
            old.url,
            headers=headers,
            content=request.body,
            extensions=old.extensions,
        )


def count_retry(call: Call, taken: int) -> None:
    """Set openai's retry header where it counts ours (not where the caller set its own)."""
    if call.request is not None:
        if _ours(call.request.headers.get(RETRY_COUNT, ""), taken):
            call.request.headers[RETRY_COUNT] = str(taken)
    else:
        call.headers = [
            (k, str(taken)) if k.lower() == RETRY_COUNT and _ours(v, taken) else (k, v)
            for k, v in call.headers
        ]
        call.built = None


def _ours(value: str, taken: int) -> bool:
    return value.isdigit() and int(value) < taken


def forwardable(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The caller's headers that may reach a provider."""
    return [(k, v) for k, v in headers if k.lower() not in _OWN_HEADERS]


class _Pieces:
    """A streamed body, asynchronous and nothing else (httpx2's own multipart body is both)."""

    def __init__(self, body: AsyncIterable[bytes]) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()

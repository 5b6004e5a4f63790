"""Redirects: which are followed, and what goes along to where.

Within the same origin every one; to another host a GET or HEAD, without any credentials. Sends
nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2

from specroute.errors import BadAnswer
from specroute.http import wire
from specroute.http.unbroken import unbroken

MOST = 20
"""One after the other."""

_CREDENTIALS = frozenset(
    {
        "authorization",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "cookie",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
    }
)


async def followed(
    request: httpx2.Request,
    response: httpx2.Response,
    send: Callable[[httpx2.Request], Awaitable[httpx2.Response]],
    *,
    provider: str,
    credentials: frozenset[str],
) -> httpx2.Response:
    """The answer behind ``response``, which redirects ``request``. ``credentials``: the names of
    the provider's own headers. Raises :class:`BadAnswer` for a redirect that can't be followed."""
    origin = request.url
    for _ in range(MOST):
        target = response.next_request
        await unbroken(response.aclose())
        if target is None:
            raise BadAnswer(
                f"{provider}: {wire.show_url(str(request.url))} redirects to an "
                "unreadable location",
                provider=provider,
            )
        if not _same_origin(origin, target.url):
            if target.method not in ("GET", "HEAD") or request.method not in ("GET", "HEAD"):
                raise BadAnswer(
                    f"{provider}: {wire.show_url(str(request.url))} redirects to "
                    f"another host, {wire.show_url(str(target.url))}; not followed, since "
                    "the request would go along. If that host is right, make it the base_url",
                    provider=provider,
                )
            for name in _CREDENTIALS | credentials:
                target.headers.pop(name, None)
        request = target
        response = await send(request)
        if not response.has_redirect_location:
            return response
    await unbroken(response.aclose())
    raise BadAnswer(
        f"{provider}: more than {MOST} redirects from {wire.show_url(str(origin))}",
        provider=provider,
    )


def _same_origin(a: httpx2.URL, b: httpx2.URL) -> bool:
    """Same scheme, host and port, or the same host's step up from http to https."""
    if a.host != b.host:
        return False
    if a.scheme == b.scheme:
        return _port(a) == _port(b)
    return a.scheme == "http" and b.scheme == "https" and _port(a) == 80 and _port(b) == 443


def _port(url: httpx2.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)

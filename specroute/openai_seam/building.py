"""A request as an httpx2 client builds it, the short way.

openai asks for the same thing again and again: bytes to one of a few absolute URLs, under headers
that it has made itself. httpx2 merges those header by header and parses the URL anew, which costs
more than the rest of our way together. Deliberately knows only that case; every other is the
client's own.
"""

from __future__ import annotations

import weakref
from typing import Any

import httpx2

_KNOWN = frozenset({"headers", "timeout", "method", "url", "params", "content", "files"})
_REMEMBERED = 512
_urls: dict[str, httpx2.URL] = {}
_OWN = (
    "build_request", "_merge_url", "_merge_headers", "_merge_cookies", "_merge_queryparams"
)  # fmt: skip
_ordinary: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def build_request(client: httpx2.AsyncClient, asked: dict[str, Any]) -> httpx2.Request:
    """What ``client.build_request(**asked)`` comes to."""
    url, content, timeout = asked.get("url"), asked.get("content"), asked.get("timeout")
    if (
        not _builds_as_httpx2(client)
        or not (isinstance(url, str) and isinstance(content, bytes))
        or not isinstance(timeout, httpx2.Timeout)
        or asked.get("params") is not None
        or asked.get("files") is not None
        or not asked.keys() <= _KNOWN
        or client.cookies
        or client.params
    ):
        return client.build_request(**asked)
    where = _urls.get(url)
    if where is None:
        where = httpx2.URL(url)
        if where.is_relative_url:
            return client.build_request(**asked)
        if len(_urls) >= _REMEMBERED:
            _urls.clear()  # One step: threads share it.
        _urls[url] = where
    given = asked["headers"]
    names = {name.lower() for name, _ in given}
    own = [(k, v) for k, v in client.headers.raw if k.decode("latin-1").lower() not in names]
    return httpx2.Request(
        asked["method"],
        where,
        headers=own + given,
        content=content,
        extensions={"timeout": timeout.as_dict()},
    )


def _builds_as_httpx2(client: Any) -> bool:
    """Whether neither its class nor anybody since has put something else in its place."""
    kind = type(client)
    known = _ordinary.get(kind)
    if known is None:
        known = all(getattr(kind, each) is getattr(httpx2.AsyncClient, each) for each in _OWN)
        _ordinary[kind] = known
    return known and "build_request" not in vars(client)

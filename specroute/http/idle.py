"""Connections that wait for a further request, looked at cheaply.

httpcore's pool asks every idle connection at every request whether its server has closed it, and
its stream collects all that is known of a socket for each answer (its peer's address as well): with
a hundred idle connections more time than the request itself takes. Here the socket is remembered,
and asking is one system call. Knows httpcore's streams; knows nothing of requests.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import httpx2


def look_quickly(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Have the client's own connections answer quickly from now on; the same client. Other
    transports than httpx2's stay as they are."""
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if isinstance(transport, httpx2.AsyncHTTPTransport) and backend is not None:
            # Neither httpx2's transport nor its client takes a backend.
            pool._network_backend = _Backend(backend)  # type: ignore[union-attr]
    return client


class _Backend:
    """Another backend, whose streams remember their socket."""

    __slots__ = ("_backend", "sleep")

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.sleep = backend.sleep

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> _Stream:
        return _Stream(await self._backend.connect_tcp(*args, **kwargs))

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> _Stream:
        return _Stream(await self._backend.connect_unix_socket(*args, **kwargs))


class _Stream:
    """Another stream, and its socket."""

    __slots__ = ("_socket", "_stream", "aclose", "read", "write")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._socket = stream.get_extra_info("socket")
        # Its own methods, so that reading and writing go no further way.
        self.read: Callable[..., Any] = stream.read
        self.write: Callable[..., Any] = stream.write
        self.aclose: Callable[..., Any] = stream.aclose

    async def start_tls(self, *args: Any, **kwargs: Any) -> _Stream:
        return _Stream(await self._stream.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._socket is not None and hasattr(select, "poll"):
            return _readable(self._socket)
        return self._stream.get_extra_info(info)


def _readable(sock: Any) -> bool:
    """Whether there is something to read: of an idle connection, that its server has closed it."""
    fd = sock.fileno()
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))

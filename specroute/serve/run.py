"""The server process: uvicorn around the application, until a signal ends it.

Knows sockets and signals; on SIGTERM or SIGINT nothing new is taken, what is under way is finished.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from specroute.config import Config
from specroute.http.sockets import SPARE_FILES, raise_open_files
from specroute.serve.app import make_app
from specroute.serve.keys import Keys, check_address

CUT_S = 5
"""Seconds that callers get to read why their answers were cut, after the drain."""


def serve(
    config: Config,
    *,
    host: str,
    port: int,
    key_env: str,
    max_concurrent: int,
    drain_s: int,
    warm_up: bool,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way get ``drain_s`` seconds to end, and are
    then cut with an error. ``ready`` is called with the API's base URL when the port is open.

    Raises :class:`specroute.ConfigError` for a public address without a key, ``SystemExit(3)`` for
    an address that can't be listened on.
    """
    keys = Keys.from_env(key_env, os.environ)
    check_address(host, keys, key_env)
    # A caller's connection and a provider's for each request.
    raise_open_files(2 * max_concurrent + SPARE_FILES)
    app = make_app(config, keys=keys, max_concurrent=max_concurrent, warm_up=warm_up)
    made = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=drain_s + CUT_S,
        server_header=False,
    )
    with suppress(KeyboardInterrupt):
        _Server(made, ready, drain_s, app.state.proxy.cut).run()


class _Server(uvicorn.Server):
    """uvicorn's, which also says when it listens and when the drain is over."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[str], None],
        drain_s: int,
        cut: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._ready, self._drain_s, self._cut = ready, drain_s, cut

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    async def shutdown(self, sockets: Any = None) -> None:
        later = asyncio.get_running_loop().call_later(self._drain_s, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            later.cancel()

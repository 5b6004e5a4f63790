"""The server process: uvicorn around the application, until a signal ends it.

Knows sockets and signals; on SIGTERM or SIGINT nothing new is taken, what is under way is finished.
"""

from __future__ import annotations

import os

import uvicorn

from specroute.config import Config
from specroute.http.sockets import SPARE_FILES, raise_open_files
from specroute.serve.app import make_app
from specroute.serve.keys import Keys, check_address


def serve(
    config: Config,
    *,
    host: str,
    port: int,
    key_env: str,
    max_concurrent: int,
    drain_s: int,
    warm_up: bool,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way get ``drain_s`` seconds to end.

    Raises :class:`specroute.ConfigError` for a public address without a key.
    """
    keys = Keys.from_env(key_env, os.environ)
    check_address(host, keys, key_env)
    # A caller's connection and a provider's for each request.
    raise_open_files(2 * max_concurrent + SPARE_FILES)
    app = make_app(config, keys=keys, max_concurrent=max_concurrent, warm_up=warm_up)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=drain_s,
        server_header=False,
    )

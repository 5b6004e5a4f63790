"""A proxy in front of a loopback server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import uvicorn

from specroute.config import parse
from specroute.serve import make_app
from specroute.serve.keys import Keys
from tests.client.world import KEYS, answer, config
from tests.support.loopback import Handler, Loopback


class Served:
    """The proxy, the server behind it, and clients for the proxy."""

    def __init__(self, server: Loopback, app: Any, port: int) -> None:
        self.server, self.app = server, app
        self.root = f"http://127.0.0.1:{port}"
        self.http = httpx2.AsyncClient(base_url=self.root, timeout=10)

    def openai(self, key: str = "unused", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=key, base_url=f"{self.root}/v1", **{"max_retries": 0, **options}
        )


@asynccontextmanager
async def serving(
    handler: Handler = answer,
    *,
    keys: tuple[str, ...] = (),
    tables: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """A proxy whose model ``smart`` is behind ``handler``, or by the config ``tables``."""
    async with Loopback(handler) as server:
        made = parse(tables or config(server.url), "test", KEYS)
        app = make_app(made, keys=Keys(keys), **options)
        runner = uvicorn.Server(
            uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=5)
        )
        runner.install_signal_handlers = lambda: None  # type: ignore[method-assign]
        bound = runner.config.bind_socket()
        task = asyncio.create_task(runner.serve(sockets=[bound]))
        try:
            async with asyncio.timeout(10):
                while not runner.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0)
            served = Served(server, app, bound.getsockname()[1])
            async with served.http:
                yield served
        finally:
            runner.should_exit = True
            await task
            bound.close()

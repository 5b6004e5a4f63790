"""The proxy as a web application: who may pass, how many at once, and the pages beside the API.

Knows routes, keys and counts; a request's way through the router is ``forward``'s.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from specroute.config import Config
from specroute.reporting import ReportHandle, to_wire
from specroute.router import Router
from specroute.serve.forward import (
    MOST_BODY,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    forward,
    send_error,
)
from specroute.serve.keys import Keys
from specroute.serve.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from starlette.applications import Starlette

REPORTS = 1000
"""Reports that can be looked up after their requests, the newest."""
BUSY_S = 1
"""``Retry-After`` of a request that finds no place."""


class Proxy:
    """What the requests of one application share. Made and closed with the application."""

    def __init__(
        self,
        config: Config,
        keys: Keys,
        max_concurrent: int,
        http_client: httpx2.AsyncClient | None,
    ) -> None:
        self.config, self.keys, self.max_concurrent = config, keys, max_concurrent
        self.metrics = Metrics(config.models)
        self._over = asyncio.Event()
        self._http_client = http_client
        self._running = 0
        self._reports: OrderedDict[str, ReportHandle] = OrderedDict()
        self.router: Router

    def start(self) -> None:
        """Make the router, on the loop that serves."""
        self.router = Router(
            self.config, http_client=self._http_client, on_report=self.metrics.observe
        )

    def cut(self) -> None:
        """End what is under way, each with an error that says so."""
        self._over.set()

    async def aclose(self) -> None:
        """End what still runs."""
        await self.router.aclose()

    def remember(self, handle: ReportHandle) -> None:
        """Keep a report to be looked up."""
        self._reports[handle.report.id] = handle
        if len(self._reports) > REPORTS:
            self._reports.popitem(last=False)

    def report(self, name: str) -> dict[str, Any] | None:
        """A report as it stands; ``None`` for an id that isn't known (any more)."""
        handle = self._reports.get(name)
        return None if handle is None else {"id": name, **to_wire(handle.report)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Anything below ``/v1``."""
        if self._running >= self.max_concurrent:
            self.metrics.refused.labels("busy").inc()
            said = f"the proxy has {self.max_concurrent} requests under way"
            content = {"error": {"message": said, "type": "rate_limit", "code": "proxy_busy"}}
            await send_error(send, 429, {"retry-after": str(BUSY_S)}, content)
            return
        self._running += 1
        self.metrics.in_flight.set(self._running)
        try:
            path = scope["path"].removeprefix(scope.get("root_path", "")).removeprefix("/v1")
            await forward(self.router, path, scope, receive, send, self.remember, self._over)
        except TooLarge:
            said = f"the request's body passes {MOST_BODY} bytes"
            await send_error(send, 413, {}, _error(said, "invalid_request_error", "too_large"))
        except TooSlow:
            said = "the request's body did not come to an end"
            content = _error(said, "invalid_request_error", "too_slow")
            # Else what still trickles in would hold the connection (RFC 9110, section 15.5.9).
            await send_error(send, 408, {"connection": "close"}, content)
        finally:
            self._running -= 1
            self.metrics.in_flight.set(self._running)


def make_app(
    config: Config,
    *,
    keys: Keys | None = None,
    max_concurrent: int = 1000,
    warm_up: bool = False,
    http_client: httpx2.AsyncClient | None = None,
) -> Starlette:
    """An ASGI application that answers OpenAI-format requests by ``config``.

    ``/v1/…`` is the API, ``/healthz`` and ``/metrics`` are for operators. ``keys``: who may use
    the API and the metrics (``None``: everybody). Past ``max_concurrent`` requests further ones
    are answered with 429 and ``Retry-After``. ``warm_up``: load drafts and calibrate targets at
    the start rather than beside the first requests. ``http_client`` reaches the providers and
    is not closed here.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Mount, Route

    proxy = Proxy(config, keys or Keys(), max_concurrent, http_client)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        proxy.start()
        task = asyncio.create_task(proxy.router.warm_up()) if warm_up else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
            await proxy.aclose()

    def health(_: Any) -> Response:
        return JSONResponse({"status": "ok"})

    def metrics(_: Any) -> Response:
        sharing = getattr(proxy.router.speculation, "sharing", None)
        if sharing is not None:
            proxy.metrics.sharing(sharing.state == "shared", sharing.counts)
        return Response(proxy.metrics.text(), media_type=CONTENT_TYPE)

    def models(_: Any) -> Response:
        rows = [_model(name) for name in config.models]
        return JSONResponse({"object": "list", "data": rows})

    def model(request: Any) -> Response:
        name = request.path_params["name"]
        if name in config.models:
            return JSONResponse(_model(name))
        known = ", ".join(sorted(config.models)) or "none"
        said = f"model {name!r} is not configured; known: {known}"
        return JSONResponse(_error(said, "invalid_request_error", "model_not_found"), 404)

    def report(request: Any) -> Response:
        found = proxy.report(request.path_params["name"])
        if found is not None:
            return JSONResponse(found)
        said = f"no report has that id, or it is older than the last {REPORTS}"
        return JSONResponse(_error(said, "invalid_request_error", "report_not_found"), 404)

    def missing(request: Any, _: Exception) -> Response:
        said = f"there is no {request.url.path!r} here: the API is below /v1"
        return JSONResponse(_error(said, "invalid_request_error", "not_found"), 404)

    app = Starlette(
        routes=[
            Route("/healthz", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/specroute/reports/{name}", report),
            Mount("/v1", proxy),
        ],
        exception_handlers={404: missing},
        lifespan=lifespan,
    )
    app.state.proxy = proxy
    app.add_middleware(_Guard, proxy=proxy)
    return app


class _Guard:
    """Lets only callers with a key past ``/healthz``."""

    def __init__(self, app: Any, proxy: Proxy) -> None:
        self._app, self._proxy = app, proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "HTTP only"})
            return
        if scope["type"] == "http" and scope["path"] != "/healthz":
            headers = {
                k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]
            }
            if not self._proxy.keys.admit(headers):
                self._proxy.metrics.refused.labels("key").inc()
                said = "this proxy wants a key of its own: Authorization: Bearer …"
                content = _error(said, "invalid_request_error", "invalid_api_key")
                await send_error(send, 401, {"www-authenticate": "Bearer"}, content)
                return
        await self._app(scope, receive, send)


def _model(name: str) -> Mapping[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "specroute"}


def _error(message: str, kind: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}

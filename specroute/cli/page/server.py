"""The page's own server: one self-contained page and its events, on loopback.

Knows HTTP and server-sent events. Knows no models: it is given a client and a model's name.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import openai

from specroute.client import AsyncSpecRoute
from specroute.errors import SpecRouteError
from specroute.provisional import Commit, Done, Provisional, Rollback, SpeculationEvent
from specroute.reporting import report

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class Page:
    """What the page asks and of whom. ``plain``: makes the other pane's plain calls."""

    client: AsyncSpecRoute
    plain: AsyncSpecRoute
    model: str
    prompt: str
    about: str = ""
    """A sentence on what answers."""
    system: str | None = None
    max_tokens: int = 160
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    """Other pages in the same browser don't know it, so they can't make this one spend."""

    def html(self) -> str:
        """The page, with nothing left to load."""
        text = files("specroute.cli.page").joinpath("page.html").read_text(encoding="utf-8")
        for name, value in (("ABOUT", self.about), ("PROMPT", self.prompt), ("TOKEN", self.token)):
            text = text.replace(f"__{name}__", html.escape(value))
        return text

    async def events(self, way: str, prompt: str) -> AsyncGenerator[dict[str, Any]]:
        """One answer as the page's JSON events; an error is the last of them."""
        messages: list[dict[str, str]] = [{"role": "user", "content": prompt}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        create = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        try:
            if way == "plain":
                async with aclosing(self._plain(create)) as found:
                    async for event in found:
                        yield as_json(event)
                return
            async with self.client.speculate(**create) as stream:
                async for event in stream:
                    yield as_json(event)
        except (openai.OpenAIError, SpecRouteError) as error:
            yield {"kind": "error", "text": str(error)}

    async def _plain(self, create: dict[str, Any]) -> AsyncGenerator[SpeculationEvent]:
        stream = await self.plain.chat.completions.create(**create, stream=True)
        async with stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield Commit(chunk.choices[0].delta.content)
        yield Done(report(stream))


def as_json(event: SpeculationEvent) -> dict[str, Any]:
    """An event as the page reads it."""
    match event:
        case Provisional(text):
            return {"kind": "provisional", "text": text}
        case Rollback(n_chars):
            return {"kind": "rollback", "n_chars": n_chars}
        case Commit(text):
            return {"kind": "commit", "text": text}
        case Done(found):
            return {
                "kind": "done",
                "method": found.method,
                "exactness": found.exactness,
                "cost_usd": found.cost_usd,
            }


def app(page: Page) -> Starlette:
    """The page at ``/``, its events at ``/events``. Only requests that name a loopback host are
    answered (a name that was made to point here is another site), events only with the token."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    text = page.html()
    policy = "; ".join(
        (
            "default-src 'none'",
            "connect-src 'self'",
            *(f"{kind}-src '{digest}'" for kind, digest in _digests(text)),
        )
    )
    headers = {"content-security-policy": policy, "cache-control": "no-store"}

    async def index(request: Request) -> Response:
        return HTMLResponse(text, headers=headers)

    async def events(request: Request) -> Response:
        query = request.query_params
        if not secrets.compare_digest(query.get("token", ""), page.token):
            return PlainTextResponse("the token is not this page's", 403)
        if query.get("way") not in ("plain", "speculate"):
            return PlainTextResponse("expected way=plain or way=speculate", 400)

        found = page.events(query["way"], query.get("prompt", ""))
        return StreamingResponse(
            _lines(found, request),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    hosts = ["127.0.0.1", "localhost", "[::1]"]
    return Starlette(
        routes=[Route("/", index), Route("/events", events)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
    )


async def _lines(events: AsyncGenerator[dict[str, Any]], request: Request) -> AsyncGenerator[bytes]:
    """Server-sent events, until the browser leaves: that is noticed at once, not with the next."""
    gone = asyncio.ensure_future(_gone(request))
    coming: asyncio.Future[dict[str, Any] | None] | None = None
    try:
        while not gone.done():
            coming = asyncio.ensure_future(anext(events, None))
            await asyncio.wait((coming, gone), return_when=asyncio.FIRST_COMPLETED)
            event = coming.result() if coming.done() else None
            if event is None:
                return
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
    finally:
        ending = [task for task in (gone, coming) if task is not None and not task.done()]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await events.aclose()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _digests(text: str) -> list[tuple[str, str]]:
    """(kind, hash) of the page's one style and one script, for its content policy."""
    found = []
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        found.append((kind, f"sha256-{digest}"))
    return found


@asynccontextmanager
async def served(page: Page, port: int = 0) -> AsyncGenerator[str]:
    """Serve on 127.0.0.1 (``port`` 0: a free one); gives the page's address.

    ``OSError`` where the port is taken.
    """
    import uvicorn

    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    config = uvicorn.Config(
        app(page), access_log=False, log_level="critical", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    # Not serve(): it would take the process's signals.
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    task = asyncio.create_task(server.main_loop(), name="page")
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait([task])
        await server.shutdown([sock])
        left = list(server.server_state.tasks)
        for each in left:
            each.cancel()
        if left:
            await asyncio.wait(left)

"""What the client tests share: clients for a loopback server, and a two-provider config."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from specroute import AsyncSpecRoute
from tests.support.loopback import Exchange, Handler, Loopback, chunks, completion

MESSAGES: Any = [{"role": "user", "content": "Say hello."}]
KEYS = {"LAB_KEY": "sk-canary-lab-0001", "HUB_KEY": "sk-canary-hub-0002"}


async def answer(exchange: Exchange) -> None:
    """A chat server that answers everything well."""
    if exchange.path.endswith("/chat/completions"):
        if exchange.json.get("stream"):
            await exchange.stream(chunks("Hel", "lo"), {"x-request-id": "req-1"})
        else:
            await exchange.json_answer(completion("Hello"), headers={"x-request-id": "req-1"})
    elif exchange.path.endswith("/models"):
        await exchange.json_answer({"object": "list", "data": []})
    elif exchange.path.endswith("/embeddings"):
        await exchange.json_answer(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
                "model": exchange.json["model"],
                "usage": {"prompt_tokens": 1, "total_tokens": 1},
            }
        )
    else:
        await exchange.json_answer({"error": {"message": "no such path"}}, 404)


def config(lab: str, hub: str | None = None, **extra: Any) -> dict[str, Any]:
    """A config with the provider ``lab`` and, with another address, ``hub``."""
    providers: dict[str, Any] = {
        "lab": {"profile": "generic", "base_url": lab, "env_key": "LAB_KEY"},
    }
    models: dict[str, Any] = {"smart": {"targets": ["lab:lab-model"]}}
    if hub is not None:
        providers["hub"] = {"profile": "generic", "base_url": hub, "env_key": "HUB_KEY"}
        models["other"] = {"targets": ["hub:hub-model"]}
    return {"version": 1, "providers": providers, "models": models, **extra}


@asynccontextmanager
async def plain(handler: Handler = answer, **options: Any) -> AsyncIterator[tuple[Loopback, Any]]:
    """A server and a plain client for it."""
    async with (
        Loopback(handler) as server,
        AsyncSpecRoute(**{"api_key": "sk-plain", "base_url": server.url, **options}) as client,
    ):
        yield server, client


@asynccontextmanager
async def configured(
    handler: Handler = answer, *, timeouts: Mapping[str, float] | None = None, **options: Any
) -> AsyncIterator[tuple[Loopback, Any]]:
    """A server and a client whose config names it ``lab`` and one model of it ``smart``."""
    async with Loopback(handler) as server:
        tables = config(server.url)
        if timeouts is not None:
            tables["providers"]["lab"]["timeouts"] = dict(timeouts)
        async with AsyncSpecRoute(config=tables, **options) as client:
            yield server, client

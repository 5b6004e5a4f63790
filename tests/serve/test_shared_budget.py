"""Two proxies with one Redis: a budget that holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.client.world import MESSAGES
from tests.serve.world import serving
from tests.support.loopback import Exchange, Loopback, completion
from tests.support.redis_server import RedisServer

OUTPUT_USD, TOKENS, LIMIT = 0.001, 2, 0.5
"""Dollars per output token, tokens of an answer, dollars a day: 250 answers."""


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_five_hundred_calls_at_once_keep_the_days_budget(redis_server: RedisServer) -> None:
    """Never over it, and no more than one request's estimate is left unused at the end."""
    answered = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        await exchange.json_answer(completion("Hello"))

    async with Loopback(handler) as upstream:
        tables: dict[str, Any] = {
            "version": 1,
            "providers": {
                "lab": {
                    "profile": "generic",
                    "base_url": upstream.url,
                    "prices": {"input": 0.0, "output": OUTPUT_USD * 1e6},
                }
            },
            "models": {"smart": {"targets": ["lab:m"]}},
            "budgets": {"daily": {"usd": LIMIT}},
            "store": {"kind": "redis", "url": redis_server.url},
        }
        body = {"model": "smart", "messages": MESSAGES, "max_tokens": TOKENS}
        async with serving(tables=tables) as one, serving(tables=tables) as two:
            for proxy in (one, two):  # 250 of them wait for 100 connections: that is no fault.
                proxy.http.timeout = httpx2.Timeout(60)

            async def ask(i: int) -> int:
                proxy = (one, two)[i % 2]
                return (await proxy.http.post("/v1/chat/completions", json=body)).status_code

            statuses = await asyncio.gather(*map(ask, range(500)))
            late = await one.http.post("/v1/chat/completions", json=body)
    spent = answered * TOKENS * OUTPUT_USD
    assert LIMIT - TOKENS * OUTPUT_USD < spent <= LIMIT + 1e-9
    assert statuses.count(200) == answered
    assert late.status_code == 429 and "budget" in late.json()["error"]["message"]

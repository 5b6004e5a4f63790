"""Limits, budgets and ``max_cost_usd`` through a client, against a server that counts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute, report, reports
from specroute.exchange import RouterRequest
from specroute.limits import gate
from specroute.store.window import DAY, MINUTE, Want
from tests.client.test_lifecycle import endless, silent
from tests.client.world import MESSAGES, config
from tests.support.loopback import DONE, Exchange, Handler, Loopback, chunk, completion, event

PRICES = {"input": 10.0, "output": 40.0}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
BILL = (10 * 10 + 5 * 40) / 1e6
"""Dollars of one answer."""
GUESS = 12
"""The upper estimate of the prompt: 10 bytes, and a message's own tokens."""


async def answer(exchange: Exchange) -> None:
    if exchange.method == "GET":
        await exchange.json_answer({"object": "list", "data": []})
    elif exchange.json.get("stream"):
        await exchange.stream(
            [
                chunk("Hel"),
                chunk("lo"),
                chunk(finish="stop"),
                event({"choices": [], "usage": USAGE}),
                DONE,
            ]
        )
    else:
        await exchange.json_answer({**completion("Hello"), "usage": USAGE})


@asynccontextmanager
async def limited(
    handler: Handler = answer,
    limits: Mapping[str, float] | None = None,
    *,
    timeouts: Mapping[str, float] | None = None,
    prices: Mapping[str, float] | None = PRICES,
    model: Mapping[str, Any] | None = None,
    **top: Any,
) -> AsyncIterator[tuple[Loopback, AsyncSpecRoute]]:
    async with Loopback(handler) as server:
        tables = config(server.url, **top)
        tables["providers"]["lab"] |= {
            "limits": dict(limits or {}),
            "timeouts": {"connect": 30, **(timeouts or {})},
            "prices": dict(prices or {}),
        }
        tables["models"]["smart"] |= model or {}
        async with AsyncSpecRoute(config=tables, max_retries=0) as client:
            yield server, client


async def ask(client: AsyncSpecRoute, **more: Any) -> Any:
    got = await client.chat.completions.create(
        **{"model": "smart", "messages": MESSAGES, "max_tokens": 20, **more}
    )
    return [c async for c in got] if more.get("stream") else got


async def thousand(client: AsyncSpecRoute) -> list[BaseException]:
    """So many callers at once, by the router (openai's own share of 1,000 calls takes seconds);
    the errors they got."""
    router = client._seam.connections.router
    fields = {"model": "smart", "messages": MESSAGES, "max_tokens": 20}

    def call() -> Any:
        body = json.dumps(fields).encode()
        return router.handle(
            RouterRequest(
                "POST",
                "/chat/completions",
                headers=[("content-type", "application/json")],
                body=body,
                fields=fields,
                max_retries=0,
            )
        )

    found = await asyncio.gather(*(call() for _ in range(1000)), return_exceptions=True)
    return [f for f in found if isinstance(f, BaseException)]


async def used(client: AsyncSpecRoute, key: str) -> float:
    """What is booked now: a want of more than everything is refused, and says it."""
    window = DAY if key == "usd" else MINUTE
    store = client._seam.connections._store
    refused = await store.take([Want(key, inf, 1.0, window)], time.time())
    assert refused is not None
    return refused.used


async def test_a_minutes_calls_are_never_more() -> None:
    """1,000 callers at once: as many as may go, the rest get an error that names limit and wait."""
    async with limited(limits={"rpm": 40}, timeouts={"first_token": 20}) as (server, client):
        errors = await thousand(client)
        assert 1000 - len(errors) == len(server.seen) == 40
        assert {type(e) for e in errors} == {specroute.LimitReached}
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(client)
    error: Any = caught.value
    assert isinstance(error, openai.RateLimitError)
    assert isinstance(error, specroute.LimitReached)
    assert error.limit == "providers.lab.limits.rpm"
    assert "providers.lab.limits.rpm = 40: 40 calls in the last minute leave no room" in str(error)
    assert 30 < error.wait_s <= 61
    assert error.code == "rate_limit_exceeded"
    assert error.response.headers["retry-after"] == str(-int(-error.wait_s // 1))


async def test_a_caller_waits_for_room_within_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """First come, first served; the wait counts as time of the request."""
    monkeypatch.setattr(gate, "MINUTE", specroute.store.window.Window(1, 2))  # type: ignore[attr-defined]
    async with limited(limits={"rpm": 2}, timeouts={"first_token": 30}) as (server, client):
        began = time.monotonic()
        got = await asyncio.gather(*(ask(client) for _ in range(4)))
        assert time.monotonic() - began > 0.9
        assert len(server.seen) == 4
        assert max(report(g).total_s or 0 for g in got) > 0.9


async def test_tokens_are_reserved_and_then_settled() -> None:
    """The estimate counts until the bill is there, then the bill does."""
    async with limited(limits={"tpm": 1000}) as (_, client):
        await ask(client)
        assert await used(client, "lab/tpm") == 15
        await ask(client, stream=True)
        assert await used(client, "lab/tpm") == 30
        with pytest.raises(specroute.LimitReached, match=r"the prompt has up to \d+ tokens, more"):
            await ask(client, messages=[{"role": "user", "content": "x" * 4000}])


async def test_a_budget_of_a_day_is_never_passed() -> None:
    """1,000 callers at once: never over by more than nothing, and the error has the numbers."""
    budget = 100 * BILL
    async with limited(timeouts={"total": 60}, budgets={"daily": {"usd": budget}}) as (
        server,
        client,
    ):
        errors = await thousand(client)
        spent = await used(client, "usd")
        assert spent == pytest.approx(BILL * len(server.seen))
        assert spent <= budget
        reserved = (GUESS * 10 + 20 * 40) / 1e6
        with pytest.raises(specroute.BudgetExceeded) as caught:
            for _ in range(100):
                await ask(client)
        assert budget - reserved < await used(client, "usd") <= budget * (1 + 1e-6)
    assert {type(e) for e in errors} == {specroute.BudgetExceeded}
    error: Any = caught.value
    assert isinstance(error, openai.RateLimitError)
    assert "budgets.daily.usd = 0.03" in str(error)
    assert "today (UTC)" in str(error)
    assert error.code == "budget_exceeded"


async def refusing(exchange: Exchange) -> None:
    await exchange.json_answer({"error": {"message": "no"}}, 400)


@pytest.mark.parametrize(
    ("handler", "calls", "tokens", "usd"),
    [
        pytest.param(refusing, 1, 0, 0.0, id="refused"),
        pytest.param(silent, 1, GUESS, GUESS * 10 / 1e6, id="cancelled before an answer"),
    ],
)
async def test_what_failed_gives_its_reservation_back(
    handler: Handler, calls: int, tokens: int, usd: float
) -> None:
    """A refusal bills nothing; a call that was given up keeps its prompt alone."""
    async with limited(handler, {"rpm": 10, "tpm": 1000}, budgets={"daily": {"usd": 1}}) as (
        server,
        client,
    ):
        call = asyncio.create_task(ask(client))
        await server.arrived.wait()
        if handler is silent:
            call.cancel()
        with pytest.raises((openai.OpenAIError, asyncio.CancelledError)):
            await call
        found = [await used(client, key) for key in ("lab/rpm", "lab/tpm", "usd")]
    assert found == pytest.approx([calls, tokens, usd])


async def test_a_stream_left_early_is_billed_as_far_as_it_was_seen() -> None:
    """Its prompt, and the pieces that came."""
    async with limited(endless, {"tpm": 1000}) as (server, client):
        stream = await client.chat.completions.create(
            model="smart", messages=MESSAGES, max_tokens=500, stream=True
        )
        assert await used(client, "lab/tpm") == GUESS + 500
        await anext(aiter(stream))
        await stream.close()
        await server.seen[0].gone.wait()
        assert GUESS < await used(client, "lab/tpm") < GUESS + 50


async def test_what_never_left_counts_nothing() -> None:
    """No connection: not even a call."""
    tables = config("http://127.0.0.1:1/v1")
    tables["providers"]["lab"]["limits"] = {"rpm": 10, "tpm": 1000}
    async with AsyncSpecRoute(config=tables, max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            await ask(client)
        assert await used(client, "lab/rpm") == await used(client, "lab/tpm") == 0


async def test_retries_count_too() -> None:
    """Each attempt is a call."""
    turns = []

    async def flaky(exchange: Exchange) -> None:
        turns.append(1)
        if len(turns) < 3:
            await exchange.json_answer({"error": {}}, 503, {"retry-after-ms": "1"})
        else:
            await answer(exchange)

    async with limited(flaky, {"rpm": 10, "tpm": 1000}) as (_, client):
        await ask(client.with_options(max_retries=3))
        assert (await used(client, "lab/rpm"), await used(client, "lab/tpm")) == (3, 15)


async def test_an_unknown_price_is_said() -> None:
    """A budget can't be kept for what nobody knows the price of; nothing is sent."""
    async with limited(prices={}, default_provider="lab", budgets={"daily": {"usd": 1}}) as (
        server,
        client,
    ):
        with pytest.raises(openai.BadRequestError, match="what lab:lab-model costs is not known"):
            await ask(client)
        await client.models.list()
        assert [s.path for s in server.seen] == ["/v1/models"]


async def test_a_requests_own_limit_is_kept() -> None:
    """Of the config and of the request the lower one; refused with numbers before it leaves."""
    async with limited(model={"max_cost_usd": 0.001}) as (server, client):
        got = await ask(client)
        assert report(got).cost_usd == pytest.approx(BILL)
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, extra_body={"specroute": {"max_cost_usd": 0.0005}})
        assert "a plain answer by lab:lab-model may cost 0.00092 USD" in str(caught.value)
        assert caught.value.param == "max_cost_usd"
        with pytest.raises(specroute.RequestError, match="must be a number of dollars > 0, got 0"):
            await ask(client, extra_body={"specroute": {"max_cost_usd": 0}})
        assert len(server.seen) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_open_answer_is_limited_to_what_it_may_cost(stream: bool) -> None:
    """``max_tokens`` is set, and the report says so."""
    async with limited() as (server, client):
        with reports() as seen:
            await ask(
                client,
                max_tokens=openai.NOT_GIVEN,
                stream=stream,
                extra_body={"specroute": {"max_cost_usd": 0.00053}},
            )
        assert server.seen[0].json["max_tokens"] == 10
        assert seen[0].notes == (
            "max_tokens was set to 10, as long as max_cost_usd = 0.00053 lasts",
        )


async def test_a_plain_client_keeps_max_cost_usd_where_prices_are_known() -> None:
    """Without a config: genai-prices knows OpenAI's, not this server's."""
    async with (
        Loopback(answer) as server,
        AsyncSpecRoute(api_key="k", base_url=server.url) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="costs is not known"):
            await ask(client, model="m", extra_body={"specroute": {"max_cost_usd": 1}})


async def test_clients_share_a_file(tmp_path: Any) -> None:
    """Two clients, one budget."""
    store = {"kind": "file", "path": str(tmp_path / "limits.sqlite3")}
    async with (
        limited(limits={"rpm": 3}, store=store) as (_, one),
        limited(limits={"rpm": 3}, store=store, timeouts={"first_token": 1}) as (_, other),
    ):
        await ask(one)
        await ask(other)
        await ask(one)
        with pytest.raises(openai.RateLimitError):
            await ask(other)

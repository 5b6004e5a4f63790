"""Canary keys: no provider's key shows anywhere or reaches another host."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx2
import openai
import pytest

from specroute import AsyncSpecRoute, reports
from tests.client.world import KEYS, MESSAGES, answer, config
from tests.support.loopback import Exchange, Loopback, chunk

CANARIES = [*KEYS.values(), "sk-plain-canary-0003"]


def texts_of(error: BaseException | None) -> list[str]:
    """Everything a traceback would show of an error and its causes."""
    out: list[str] = []
    while error is not None:
        out += [repr(error), str(error), *getattr(error, "__notes__", [])]
        error = error.__cause__
    return out


def echoing(status: int) -> Any:
    """A provider that quotes the key it was sent, in every way it can."""

    async def handle(exchange: Exchange) -> None:
        key = exchange.headers["authorization"]
        body = json.dumps({"error": {"message": f"bad key {key}", "code": "k"}}).encode()
        if status == 1:
            await exchange.start()
            await exchange.piece(chunk("a"))
            await exchange.piece(b"data: " + body + b"\n\n")
            await exchange.finish()
        elif status == 2:
            await exchange.send(200, b"<p>" + key.encode(), kind="text/html")
        else:
            await exchange.send(status, body)

    return handle


@pytest.mark.parametrize("status", [1, 2, 200, 401, 404, 500])
@pytest.mark.parametrize("kind", ["plain", "configured"])
async def test_an_echoed_key_is_not_shown(
    status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in messages, notes, causes, reports or logs at any level."""
    caplog.set_level(logging.DEBUG)
    async with Loopback(echoing(status)) as server:
        options: dict[str, Any] = (
            {"config": config(server.url)}
            if kind == "configured"
            else {"api_key": CANARIES[2], "base_url": server.url}
        )
        async with AsyncSpecRoute(max_retries=0, **options) as client:
            with reports() as told, pytest.raises(openai.APIError) as caught:
                stream = await client.chat.completions.create(
                    model="smart", messages=MESSAGES, stream=True
                )
                async for _ in stream:
                    pass
            shown = [*texts_of(caught.value), caplog.text, repr(list(told))]
            shown += [repr(client), repr(client.router), repr(client.router.config)]
            provider = next(iter(client.router.config.providers.values()))
            shown.append(repr(client.router.http(provider)))
        assert server.seen[0].headers["authorization"].split()[1] in CANARIES
    assert [c for c in CANARIES for text in shown if c in text] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [1, 2, 200, 400])
async def test_a_key_in_a_header_or_query_is_not_shown_either(status: int, stream: bool) -> None:
    """As gateways want it (``X-Api-Key``, ``?api_key=``); nor in the error's body."""
    headers, query = {"X-Api-Key": "header-canary-0004"}, {"api_key": "query-canary-0005"}
    tables = {"headers": headers, "query": query}

    async def handle(exchange: Exchange) -> None:
        said = f"{exchange.headers['x-api-key']} {exchange.query['api_key']}"
        exchange.headers["authorization"] += f" {said}"
        await echoing(status)(exchange)

    async with Loopback(handle) as server:
        made = config(server.url)
        made["providers"]["lab"] |= tables
        async with AsyncSpecRoute(max_retries=0, config=made) as client:
            with reports() as told, pytest.raises(openai.APIError) as caught:
                answer = await client.chat.completions.create(
                    model="smart", messages=MESSAGES, stream=stream
                )
                async for _ in answer:
                    pass
            shown = [*texts_of(caught.value), repr(caught.value.body), repr(list(told))]
    canaries = [*headers.values(), *query.values(), *CANARIES]
    assert [c for c in canaries for text in shown if c in text] == []


async def test_the_key_of_a_bundled_provider_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table of the config names it: the key is found when the provider is asked."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARIES[2])

    def quotes(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, json={"error": {"message": request.headers["authorization"]}})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(quotes)) as http:
        tables = config("http://127.0.0.1:9/v1")
        async with AsyncSpecRoute(config=tables, http_client=http, max_retries=0) as client:
            with reports() as told, pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(model="openai:gpt-4.1", messages=MESSAGES)
    shown = [*texts_of(caught.value), repr(caught.value.body), repr(list(told))]
    assert "***" in str(caught.value)
    assert [text for text in shown if CANARIES[2] in text] == []


@pytest.mark.parametrize("how", ["copy", "function"])
@pytest.mark.parametrize("status", [1, 200, 401])
async def test_a_key_that_came_later_is_not_shown_either(how: str, status: int) -> None:
    """A copy's own key, and one that a function gave."""

    async def key() -> str:
        return CANARIES[2]

    async with Loopback(echoing(status)) as server:
        first: Any = key if how == "function" else "sk-the-first-key"
        async with AsyncSpecRoute(api_key=first, base_url=server.url, max_retries=0) as client:
            if how == "copy":
                client = client.with_options(api_key=CANARIES[2])
            with reports() as seen, pytest.raises(openai.OpenAIError) as caught:
                stream = status == 1
                got = await client.chat.completions.create(
                    model="m", messages=MESSAGES, stream=stream
                )
                async for _ in got:
                    pass
    assert server.seen[0].headers["authorization"] == f"Bearer {CANARIES[2]}"
    assert CANARIES[2] not in "".join([*texts_of(caught.value), repr(list(seen))])


async def test_no_key_reaches_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two providers and OpenAI's own variables; each sees its own key alone, on every path."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARIES[2])
    async with Loopback(answer) as lab, Loopback(answer) as hub:
        tables = config(lab.url, hub.url, default_provider="hub")
        async with AsyncSpecRoute(config=tables) as client:
            for copy in (client, client.with_options(timeout=5)):
                for name in ("smart", "other", "lab:x", "y"):
                    await copy.chat.completions.create(model=name, messages=MESSAGES)
                await copy.embeddings.create(model="smart", input="a", encoding_format="float")
                await copy.models.list()
        for server, own in ((lab, KEYS["LAB_KEY"]), (hub, KEYS["HUB_KEY"])):
            assert len(server.seen) > 2
            for seen in server.seen:
                sent = str(seen.headers) + str(seen.query) + seen.body.decode()
                assert [c for c in CANARIES if c in sent] == [own]


async def test_a_redirect_takes_no_key_along() -> None:
    """A provider that sends its callers elsewhere."""
    async with Loopback(answer) as hub:

        async def away(exchange: Exchange) -> None:
            await exchange.send(307, headers={"location": hub.url + "/models"})

        async with Loopback(away) as lab:
            for options in (
                {"config": config(lab.url, default_provider="lab")},
                {"api_key": CANARIES[2], "base_url": lab.url},
            ):
                async with AsyncSpecRoute(**options) as client:
                    await client.models.list()
                    with pytest.raises(openai.APIError, match="another host"):
                        await client.chat.completions.create(model="smart", messages=MESSAGES)
        for seen in hub.seen:
            assert [c for c in CANARIES if c in str(seen.headers)] == []
        assert len(hub.seen) == 2


def test_credentials_in_a_base_url_are_refused() -> None:
    """They would show in logs and reprs."""
    with pytest.raises(openai.OpenAIError) as caught:
        AsyncSpecRoute(api_key="k", base_url="http://user:hunter2@127.0.0.1/v1")
    assert "hunter2" not in str(caught.value)

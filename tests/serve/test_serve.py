"""The proxy: an OpenAI-format API by a config."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import openai
import pytest

from specroute.errors import ConfigError
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.running import ReferenceServer
from specroute.serve import forward
from specroute.serve.keys import Keys, check_address
from tests.client.world import KEYS, MESSAGES
from tests.serve.world import serving
from tests.support.loopback import Exchange, chunks, completion

QUESTION = "Where is my order 1234? I was told it would be here by Friday."


async def test_an_openai_client_is_answered() -> None:
    """Whole and streamed, with the target's own model name and the provider's own key upstream."""
    async with serving() as served, served.openai() as client:
        whole = await client.chat.completions.create(model="smart", messages=MESSAGES)
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert whole.choices[0].message.content == "Hello"
    assert "".join(texts) == "Hello"
    seen = served.server.seen[0]
    assert seen.json["model"] == "lab-model"
    assert seen.headers["authorization"] == f"Bearer {KEYS['LAB_KEY']}"


async def test_a_whole_answer_carries_its_report() -> None:
    """As the field ``specroute``, and by the id in a header."""
    async with serving() as served:
        body = {"model": "smart", "messages": MESSAGES}
        answer = await served.http.post("/v1/chat/completions", json=body)
        name = answer.headers["x-specroute-report"]
        report = (await served.http.get(f"/v1/specroute/reports/{name}")).json()
        unknown = await served.http.get("/v1/specroute/reports/none")
    assert answer.json()["specroute"]["id"] == name == report["id"]
    assert report["complete"] is True
    assert unknown.status_code == 404


async def test_a_streams_report_is_complete_after_it() -> None:
    """The id comes with the headers."""
    async with serving() as served:
        body = {"model": "smart", "messages": MESSAGES, "stream": True}
        answer = await served.http.post("/v1/chat/completions", json=body)
        report = await served.http.get(
            f"/v1/specroute/reports/{answer.headers['x-specroute-report']}"
        )
    assert answer.text.rstrip().endswith("data: [DONE]")
    assert report.json()["finish_reason"] == "stop"


async def test_models_are_the_configs() -> None:
    """Named ones; anything else is a 404 that lists them."""
    async with serving() as served, served.openai() as client:
        assert [model.id async for model in client.models.list()] == ["smart"]
        assert (await client.models.retrieve("smart")).id == "smart"
        with pytest.raises(openai.NotFoundError, match="known: smart"):
            await client.models.retrieve("other")
        with pytest.raises(openai.NotFoundError, match="model 'clever' is not configured"):
            await client.chat.completions.create(model="clever", messages=MESSAGES)


async def test_a_providers_refusal_is_passed_on() -> None:
    """Status, words and Retry-After; the proxy has retried already and says so."""

    async def limited(exchange: Exchange) -> None:
        await exchange.json_answer(
            {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
            429,
            {"retry-after": "0.01"},
        )

    async with serving(limited) as served, served.openai() as client:
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            await client.chat.completions.create(model="smart", messages=MESSAGES)
    assert caught.value.response.headers["retry-after"] == "0.01"
    assert len(served.server.seen) == 3


async def test_a_stream_that_breaks_is_an_error_not_an_end() -> None:
    """The caller's client raises; there is no [DONE]."""

    async def cut(exchange: Exchange) -> None:
        await exchange.start()
        for piece in list(chunks("Hel", "lo"))[:2]:
            await exchange.piece(piece)
        exchange.cut()

    async with serving(cut) as served, served.openai() as client:
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match=r"cut|ended|before"):
            async for _ in stream:
                pass


async def test_nobody_reachable_is_a_502() -> None:
    """Not a stack trace."""
    tables = {
        "version": 1,
        "providers": {"lab": {"profile": "generic", "base_url": "http://127.0.0.1:9/v1"}},
        "models": {"smart": {"targets": ["lab:m"]}},
    }
    async with serving(tables=tables) as served:
        body = {"model": "smart", "messages": MESSAGES}
        answer = await served.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "ConnectFailed"
    assert answer.headers["x-should-retry"] == "false"


async def test_a_body_that_stops_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """408 and the end of its connection, and nothing is sent to a provider."""
    monkeypatch.setattr(forward, "UPLOAD_S", 0.05)
    async with serving(max_concurrent=1) as served, asyncio.timeout(10):
        host, _, port = served.root.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 408") and b"\r\nconnection: close\r\n" in said
        writer.close()
        assert served.server.seen == []
        body = {"model": "smart", "messages": MESSAGES}
        assert (await served.http.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"authorization": "proxy-key"}, {"api-key": ""}]
)
async def test_without_its_key_nobody_passes(headers: dict[str, str]) -> None:
    """Neither the API nor the metrics; health is for everybody."""
    async with serving(keys=("proxy-key",)) as served:
        for path in ("/v1/models", "/metrics", "/v1/specroute/reports/x"):
            assert (await served.http.get(path, headers=headers)).status_code == 401
        body = {"model": "smart", "messages": MESSAGES}
        answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await served.http.get("/healthz", headers=headers)).json() == {"status": "ok"}
    assert served.server.seen == []


async def test_with_a_key_one_passes_and_it_goes_no_further() -> None:
    """Any of several; the provider never sees it."""
    async with serving(keys=("one-key", "proxy-key")) as served, served.openai("proxy-key") as c:
        await c.chat.completions.create(model="smart", messages=MESSAGES)
    (seen,) = served.server.seen
    assert "proxy-key" not in json.dumps(seen.headers)


def test_a_public_address_wants_a_key() -> None:
    """Loopback doesn't."""
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_address(host, Keys(), "KEYS")
    for host in ("0.0.0.0", "::", "10.0.0.5", "proxy.internal"):
        with pytest.raises(ConfigError, match="set KEYS to one or more keys"):
            check_address(host, Keys(), "KEYS")
        check_address(host, Keys(["k"]), "KEYS")


def test_keys_are_read_from_a_variable_and_not_shown() -> None:
    """Several, separated by commas or blanks."""
    keys = Keys.from_env("KEYS", {"KEYS": "first, second"})
    assert keys.admit({"authorization": "Bearer second"})
    assert keys.admit({"api-key": "first"})
    assert not keys.admit({"authorization": "Bearer first,"})
    assert repr(keys) == "Keys(2)"
    assert not Keys.from_env("KEYS", {})


async def test_beyond_the_limit_callers_are_asked_to_wait() -> None:
    """429 with Retry-After; the ones under way are answered, and then there is room again."""
    release, both = asyncio.Event(), asyncio.Event()
    waiting: list[Exchange] = []

    async def slow(exchange: Exchange) -> None:
        waiting.append(exchange)
        if len(waiting) == 2:
            both.set()
        await release.wait()
        await exchange.json_answer(completion("Hello"))

    async with serving(slow, max_concurrent=2) as served:
        body = {"model": "smart", "messages": MESSAGES}

        async def ask() -> Any:
            return await served.http.post("/v1/chat/completions", json=body)

        first = [asyncio.create_task(ask()) for _ in range(2)]
        await both.wait()
        refused = await ask()
        release.set()
        statuses = [(await task).status_code for task in first]
        assert (await ask()).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "proxy_busy"
    assert statuses == [200, 200]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_caller_who_goes_away_ends_the_providers_work(streamed: bool) -> None:
    """Before the answer has begun, and in the middle of it."""
    gone = asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        if streamed:
            await exchange.start()
            for piece in list(chunks("Hel", "lo"))[:2]:
                await exchange.piece(piece)
        await exchange.gone.wait()
        gone.set()

    async with serving(endless) as served:
        body = {"model": "smart", "messages": MESSAGES, "stream": streamed}
        if streamed:
            async with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                await anext(answer.aiter_bytes())
        else:
            task = asyncio.create_task(served.http.post("/v1/chat/completions", json=body))
            await served.server.arrived.wait()
            task.cancel()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_metrics_count_what_was_done() -> None:
    """Prometheus' format; names of callers' own invention are one label."""
    tables = {
        "version": 1,
        "default_provider": "lab",
        "providers": {"lab": {"profile": "generic", "base_url": "x", "env_key": "LAB_KEY"}},
        "models": {"smart": {"targets": ["lab:m"]}},
    }

    async def handler(exchange: Exchange) -> None:
        await exchange.json_answer(completion("Hello"))

    from tests.support.loopback import Loopback

    async with Loopback(handler) as upstream:
        tables["providers"]["lab"]["base_url"] = upstream.url
        async with serving(tables=tables) as served, served.openai() as client:
            for model in ("smart", "smart", "made-up-1", "made-up-2"):
                await client.chat.completions.create(model=model, messages=MESSAGES)
            page = (await served.http.get("/metrics")).text
    line = 'specroute_requests_total{exactness="exact",method="plain",model="%s",outcome="ok"} 2.0'
    assert line % "smart" in page and line % "other" in page
    assert 'specroute_tokens_total{kind="completion",model="smart"} 4.0' in page
    assert "specroute_in_flight 0.0" in page
    assert "made-up" not in page and "canary" not in page


async def test_a_policy_by_header_and_a_wrong_one() -> None:
    """A preset's name; anything else is a 400 that lists them, and nothing is sent."""
    async with serving() as served, served.openai() as client:
        options = {"model": "smart", "messages": MESSAGES}
        await client.chat.completions.create(
            **options, extra_headers={"x-specroute-policy": "fixed"}
        )
        with pytest.raises(openai.BadRequestError, match=r"x-specroute-policy.*'fast'"):
            await client.chat.completions.create(
                **options, extra_headers={"x-specroute-policy": "fast"}
            )
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                **options, extra_headers={"x-specroute-policy": "os:system"}
            )
    assert len(served.server.seen) == 1
    assert "x-specroute-policy" not in served.server.seen[0].headers


async def test_other_endpoints_reach_the_models_provider() -> None:
    """Embeddings, say."""
    async with serving() as served, served.openai() as client:
        found = await client.embeddings.create(model="smart", input="a")
    assert len(found.data[0].embedding) == 1


async def test_what_is_no_json_is_refused_and_what_is_too_large() -> None:
    """With sentences."""
    async with serving() as served:
        answer = await served.http.post("/v1/chat/completions", content=b"{")
        huge = await served.http.post("/v1/chat/completions", content=b"x" * (2**26 + 1))
    assert answer.status_code == 400
    assert huge.status_code == 413
    assert served.server.seen == []


async def test_speculation_happens_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """A local draft, a scored target: the same answer as the target's own, and the report says."""
    caplog.set_level(logging.DEBUG)
    with ReferenceServer(str(target_dir())) as reference:
        tables = {
            "version": 1,
            "providers": {"ref": {"profile": "reference", "base_url": reference.base_url}},
            "drafts": {"toy": {"kind": "local", "model": str(draft_dir()), "device": "cpu"}},
            "models": {
                "smart": {
                    "targets": ["ref:target"],
                    "drafts": ["toy"],
                    "policy": {"preset": "fixed", "num_speculative_tokens": 4},
                },
                "plain": {"targets": ["ref:target"]},
            },
        }
        options: Any = {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24,
            "temperature": 0,
        }
        async with serving(tables=tables) as served, served.openai() as client:
            fast = await client.chat.completions.create(model="smart", **options)
            slow = await client.chat.completions.create(model="plain", **options)
            page = (await served.http.get("/metrics")).text
    assert fast.choices[0].message.content == slow.choices[0].message.content
    report = fast.model_extra["specroute"]
    assert report["method"] == "score" and report["accepted"] > 0
    assert f'specroute_accepted_tokens_total{{model="smart"}} {report["accepted"]}.0' in page

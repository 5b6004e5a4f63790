"""Which provider a request goes to, under which name and with which key."""

from __future__ import annotations

import io
import json
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute, report
from tests.client.world import KEYS, MESSAGES, answer, config, configured
from tests.support.loopback import Exchange, Loopback, chunks, completion


def keys_seen(server: Loopback) -> set[str]:
    return {key for seen in server.seen for key in KEYS.values() if key in str(seen.headers)}


async def test_a_model_goes_to_its_first_target_under_the_targets_name() -> None:
    """With the provider's own key; the answer's ``model`` is the provider's word."""
    async with Loopback(answer) as lab, Loopback(answer) as hub:
        async with AsyncSpecRoute(config=config(lab.url, hub.url)) as client:
            for name in ("smart", "other", "hub:special", "lab:a:b"):
                got = await client.chat.completions.create(model=name, messages=MESSAGES)
                assert got.model == "served-model"
                assert report(got).model == name
        assert [s.json["model"] for s in lab.seen] == ["lab-model", "a:b"]
        assert [s.json["model"] for s in hub.seen] == ["hub-model", "special"]
        assert keys_seen(lab) == {KEYS["LAB_KEY"]}
        assert keys_seen(hub) == {KEYS["HUB_KEY"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_lists_the_known_ones(stream: bool) -> None:
    """A 404 of our own; nothing is sent."""
    async with configured() as (server, client):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="smrt", messages=MESSAGES, stream=stream)
        assert server.seen == []
    error = caught.value
    assert isinstance(error, specroute.UnknownModel)
    assert "did you mean 'smart'" in str(error)
    assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")


async def test_a_default_provider_takes_any_name() -> None:
    """Names with a colon, too, unless they name a declared provider."""
    async with Loopback(answer) as lab, Loopback(answer) as hub:
        tables = config(lab.url, hub.url, default_provider="hub")
        async with AsyncSpecRoute(config=tables) as client:
            for name in ("anything", "llama3:8b", "lab:x"):
                await client.chat.completions.create(model=name, messages=MESSAGES)
        assert [s.json["model"] for s in hub.seen] == ["anything", "llama3:8b"]
        assert [s.json["model"] for s in lab.seen] == ["x"]


async def test_one_provider_without_models_takes_any_name() -> None:
    """A config that only says where."""
    async with Loopback(answer) as lab:
        tables = config(lab.url)
        tables["models"] = {}
        async with AsyncSpecRoute(config=tables) as client:
            await client.chat.completions.create(model="m:1", messages=MESSAGES)
        assert lab.seen[0].json["model"] == "m:1"


async def test_switching_providers_is_an_edit_of_the_file() -> None:
    """The same app over two differently shaped servers."""

    async def compact(exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await exchange.stream(chunks("one", " two"))
        else:
            await exchange.json_answer(completion("one two"))

    async def strange(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(b": keep-alive\r\n\r\n")
        for text in ("one", " two"):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            value = {"id": "1", "model": "x", "choices": [choice]}
            await exchange.piece(b"data:" + json.dumps(value).encode() + b"\r\n\r\n")
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await exchange.piece(b"data:" + json.dumps({"choices": [choice]}).encode() + b"\r\n\r\n")
        await exchange.finish()

    async def app(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    for handler, base in ((compact, "/v1"), (strange, "/other/v1/")):
        async with Loopback(handler) as server:
            async with AsyncSpecRoute(config=config(server.root + base)) as client:
                assert await app(client) == "one two"
            assert server.seen[0].path == base.rstrip("/") + "/chat/completions"


async def test_everything_else_is_passed_through() -> None:
    """To the model's provider where the body names one, else to the default, always with its key."""

    async def hub_answer(exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.path.endswith("/files"):
            kind = exchange.headers["content-type"]
            assert kind.startswith("multipart/form-data")
            await exchange.json_answer(
                {"id": "f1", "bytes": len(exchange.body), "object": "file", "purpose": "batch"}
            )
        elif exchange.path.endswith("/content"):
            await exchange.send(200, b"\x00\x01binary", kind="application/octet-stream")
        elif exchange.method == "DELETE":
            await exchange.json_answer({"id": "f1", "object": "file", "deleted": True})
        else:
            await answer(exchange)

    async with Loopback(answer) as lab, Loopback(hub_answer) as hub:
        tables = config(lab.url, hub.url, default_provider="hub")
        async with AsyncSpecRoute(config=tables) as client:
            await client.embeddings.create(model="smart", input="a", encoding_format="float")
            await client.embeddings.create(model="unknown", input="a", encoding_format="float")
            assert [m async for m in client.models.list()] == []
            made = await client.files.create(
                file=("a.jsonl", io.BytesIO(b"x" * 5)), purpose="batch"
            )
            assert made.id == "f1"
            assert (await client.files.content("f1")).content == b"\x00\x01binary"
            assert (await client.files.delete("f1")).deleted
            with pytest.raises(LookupError, match="no report"):
                report(made)
        assert [(s.path, s.json["model"]) for s in lab.seen] == [("/v1/embeddings", "lab-model")]
        assert [s.method + s.path for s in hub.seen] == [
            "POST/v1/embeddings",
            "GET/v1/models",
            "POST/v1/files",
            "GET/v1/files/f1/content",
            "DELETE/v1/files/f1",
        ]
        assert keys_seen(lab) == {KEYS["LAB_KEY"]}
        assert keys_seen(hub) == {KEYS["HUB_KEY"]}


async def test_no_default_where_one_is_needed() -> None:
    """Two providers and a request that names neither."""
    async with Loopback(answer) as lab, Loopback(answer) as hub:
        async with AsyncSpecRoute(config=config(lab.url, hub.url)) as client:
            with pytest.raises(specroute.RequestError, match="set default_provider") as caught:
                await client.models.list()
        assert isinstance(caught.value, openai.BadRequestError)
        assert (lab.seen, hub.seen) == ([], [])


async def test_what_is_ours_is_taken_out_of_the_body() -> None:
    """``extra_body={"specroute": …}`` never reaches a provider; the rest of it does."""
    async with configured() as (server, client):
        await client.chat.completions.create(
            model="smart",
            messages=MESSAGES,
            extra_body={"specroute": {"policy": "fixed", "seed": 1}, "top_k": 5},
        )
        body = server.seen[0].json
    assert body == {"messages": MESSAGES, "model": "lab-model", "top_k": 5}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"polcy": "fixed"}, "specroute.polcy"),
        ({"policy": "nonsense"}, "specroute.policy"),
        ({"policy": 5}, "specroute.policy"),
        ("fixed", "specroute"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "configured"])
async def test_a_wrong_option_is_a_bad_request(value: Any, param: str, kind: str) -> None:
    """Checked before anything is sent; the error names the key."""
    async with Loopback(answer) as server:
        options: dict[str, Any] = (
            {"config": config(server.url)}
            if kind == "configured"
            else {"api_key": "k", "base_url": server.url}
        )
        async with AsyncSpecRoute(**options) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(
                    model="smart", messages=MESSAGES, extra_body={"specroute": value}
                )
        assert server.seen == []
    assert isinstance(caught.value, specroute.RequestError)
    assert caught.value.param == param


@pytest.mark.parametrize(("known", "asked"), [(True, False), (True, True), (False, False)])
async def test_usage_is_asked_for_where_that_is_known_to_work(known: bool, asked: bool) -> None:
    """Ours is added only where the provider is known to take it, and not shown to the caller."""
    usage = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'

    async def counts(exchange: Exchange) -> None:
        pieces = chunks("a", "b")
        if (exchange.json.get("stream_options") or {}).get("include_usage"):
            pieces.insert(-1, usage)
        await exchange.stream(pieces)

    async with Loopback(counts) as server:
        tables = config(server.url)
        if known:
            tables["providers"]["lab"]["capabilities"] = {"stream_usage": True}
        async with AsyncSpecRoute(config=tables) as client:
            extra: Any = {"stream_options": {"include_usage": True}} if asked else {}
            stream = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=True, **extra
            )
            seen = [c.usage is not None async for c in stream]
            told = report(stream)
        sent = server.seen[0].json.get("stream_options")
    assert sent == ({"include_usage": True} if known or asked else None)
    assert seen == [False] * 4 + [True] * asked
    assert (told.prompt_tokens, told.completion_tokens) == ((3, 2) if known else (None, 2))
    assert told.attempts[0].estimated is not known


async def test_a_form_is_routed_by_its_model() -> None:
    """A transcription goes to the model's own provider, under the target's name."""

    async def hears(exchange: Exchange) -> None:
        assert exchange.headers["content-type"].startswith("multipart/form-data")
        assert b'name="model"\r\n\r\nhub-model\r\n' in exchange.body
        assert b"RIFF" in exchange.body
        await exchange.json_answer({"text": "hello"})

    async with Loopback(answer) as lab, Loopback(hears) as hub:
        tables = config(lab.url, hub.url, default_provider="lab")
        async with AsyncSpecRoute(config=tables) as client:
            heard = await client.audio.transcriptions.create(model="other", file=("a.wav", b"RIFF"))
        assert (heard.text, lab.seen, len(hub.seen)) == ("hello", [], 1)

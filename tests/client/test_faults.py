"""Bad input: each case is a clear typed error within its deadline, and also openai's own class."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute
from tests.client.world import MESSAGES, answer, config, configured, plain
from tests.support.loopback import (
    DONE,
    Exchange,
    Handler,
    Loopback,
    chunk,
    chunks,
    completion,
    event,
)


def sends(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.send(status, body, headers, kind)

    return handle


def streams(*pieces: bytes) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(pieces)

    return handle


async def silent(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def silent_after_headers(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.gone.wait()


async def keep_alives(exchange: Exchange) -> None:
    await exchange.start()
    while not exchange.gone.is_set():
        await exchange.piece(b": ping\n\n")
        await asyncio.sleep(0.02)


async def stalls(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(chunk("a"))
    while not exchange.gone.is_set():
        await exchange.piece(chunk("", role="assistant"))
        await asyncio.sleep(0.02)


async def hangs_up(exchange: Exchange) -> None:
    exchange.cut()


async def cuts(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(chunk("a"))
    exchange.cut()


JSON_ERROR = b'{"error":{"message":"boom","type":"t","param":"p","code":"c"}}'

# (name, server, streamed?, our class, openai's class, text of the message)
FAULTS: list[tuple[str, Handler, bool | None, type[Exception], type[Exception], str]] = [
    ("401", sends(401, JSON_ERROR), None, specroute.StatusError, openai.AuthenticationError, "boom"),
    ("403", sends(403, b"{}"), None, specroute.StatusError, openai.PermissionDeniedError, "403"),
    ("404", sends(404, b"nope"), None, specroute.StatusError, openai.NotFoundError, "404"),
    ("429", sends(429, JSON_ERROR), None, specroute.StatusError, openai.RateLimitError, "boom"),
    ("418", sends(418, b""), None, specroute.StatusError, openai.APIStatusError, "418"),
    ("502 page", sends(502, b"<html>"), None, specroute.StatusError, openai.InternalServerError, "502"),
    ("page", sends(200, b"<html>hi", "text/html"), None, specroute.BadAnswer, openai.APIError, "HTML"),
    ("no JSON", sends(200, b"{"), None, specroute.BadAnswer, openai.APIError, "expected JSON"),
    ("nothing", sends(200, b""), None, specroute.BadAnswer, openai.APIError, "empty"),
    ("a list", sends(200, b"[]"), None, specroute.BadAnswer, openai.APIError, "object"),
    ("error in 200", sends(200, JSON_ERROR), None, specroute.ErrorInBody, openai.APIError, "boom"),
    ("error event", streams(chunk("a"), event({"error": {"message": "boom"}})), True, specroute.ErrorInBody, openai.APIError, "boom"),
    ("event: error", streams(b'event: error\ndata: {"message":"boom"}\n\n'), True, specroute.ErrorInBody, openai.APIError, "boom"),
    ("broken event", streams(chunk("a"), b"data: {oops\n\n", chunk("b"), DONE), True, specroute.BadAnswer, openai.APIError, "oops"),
    ("error as a stream", sends(200, JSON_ERROR, "text/event-stream"), True, specroute.ErrorInBody, openai.APIError, "boom"),
    ("page as a stream", sends(200, b"<html>hi", "text/event-stream"), True, specroute.BadAnswer, openai.APIError, "HTML"),
    ("just stops", streams(chunk("a"), chunk("b")), True, specroute.StreamTruncated, openai.APIConnectionError, "incomplete"),
    ("stops inside", streams(chunk("a"), chunk("b")[:20]), True, specroute.StreamTruncated, openai.APIConnectionError, "incomplete"),
    ("empty stream", streams(), True, specroute.StreamTruncated, openai.APIConnectionError, "incomplete"),
    ("cut", cuts, True, specroute.StreamTruncated, openai.APIConnectionError, "broke"),
    ("hangs up", hangs_up, None, specroute.ConnectFailed, openai.APIConnectionError, "no connection"),
    ("silence", silent, None, specroute.DeadlineExceeded, openai.APITimeoutError, "first token"),
    ("only headers", silent_after_headers, True, specroute.DeadlineExceeded, openai.APITimeoutError, "first token"),
    ("keep-alives", keep_alives, True, specroute.DeadlineExceeded, openai.APITimeoutError, "first token"),
    ("stall", stalls, True, specroute.DeadlineExceeded, openai.APITimeoutError, "further"),
]  # fmt: skip


@pytest.mark.parametrize("setting", ["plain", "configured"])
@pytest.mark.parametrize(
    ("handler", "streamed", "ours", "theirs", "text", "stream"),
    [
        pytest.param(*row[1:], stream, id=f"{row[0]}-{'stream' if stream else 'whole'}")
        for row in FAULTS
        for stream in ((False, True) if row[2] is None else (row[2],))
    ],
)
async def test_a_fault(
    handler: Handler,
    streamed: bool | None,
    ours: type[Exception],
    theirs: type[Exception],
    text: str,
    stream: bool,
    setting: str,
) -> None:
    """One clear error of both kinds, in time, and no truncation passes for success."""
    limits = {"first_token": 0.3, "stall": 0.3}
    make = (
        configured(handler, timeouts=limits, max_retries=0)
        if setting == "configured"
        else plain(handler, timeout=0.3, max_retries=0)
    )
    async with make as (_, client):
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(theirs) as caught:
            got = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=stream
            )
            if stream:
                async for _ in got:
                    pass
        assert loop.time() - started < 3
    assert isinstance(caught.value, ours)
    assert text in str(caught.value)


async def test_statuses_are_worded_as_openai_words_them() -> None:
    """Message, body, code, param, type, request id and response are openai's."""
    async with Loopback(sends(400, JSON_ERROR, **{"x-request-id": "r9"})) as server:
        seen = []
        for kind in (openai.AsyncOpenAI, AsyncSpecRoute):
            async with kind(api_key="k", base_url=server.url, max_retries=0) as client:
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.chat.completions.create(model="m", messages=MESSAGES)
                e = caught.value
                seen.append(
                    {
                        "said": (str(e), e.message),
                        "body": (e.body, e.code, e.param, e.type),
                        "id": e.request_id,
                        "response": (e.status_code, e.response.content, str(e.request.url)),
                    }
                )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("base", ["", "/", "/v1/", "/v1", "/v1/v1"])
async def test_a_base_url_with_and_without_v1(base: str) -> None:
    """A trailing slash is fine; a missing /v1 gives a 404 that says so."""

    async def only_v1(exchange: Exchange) -> None:
        if exchange.path == "/v1/chat/completions":
            await exchange.json_answer(completion())
        else:
            await exchange.json_answer({"detail": "Not Found"}, 404)

    async with Loopback(only_v1) as server:
        for options in (
            {"api_key": "k", "base_url": server.root + base},
            {"config": config(server.root + base)},
        ):
            async with AsyncSpecRoute(**options) as client:
                call = client.chat.completions.create(model="smart", messages=MESSAGES)
                if base.rstrip("/") == "/v1":
                    await call
                    continue
                with pytest.raises(openai.NotFoundError) as caught:
                    await call
            notes = " ".join(caught.value.__notes__)
            assert ("twice" if base == "/v1/v1" else f"want {server.root}/v1") in notes


async def test_no_server_there() -> None:
    """A connection error that names provider and address, after the retries."""
    async with Loopback(answer) as server:
        url = server.url
    async with AsyncSpecRoute(config=config(url), max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError, match="lab: no connection to") as caught:
            await client.chat.completions.create(model="smart", messages=MESSAGES)
    assert isinstance(caught.value, specroute.ConnectFailed)


@pytest.mark.parametrize("finish", [True, False])
async def test_json_instead_of_events(finish: bool) -> None:
    """A server that ignores ``stream: true`` still gives its answer."""
    async with plain(sends(200, _json(completion("Hello")))) as (_, client):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        got = [c async for c in stream]
    assert [c.choices[0].delta.content for c in got] == ["Hello"]
    assert got[0].choices[0].finish_reason == "stop"


def _json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()


async def test_a_failed_attempt_is_made_up_for() -> None:
    """A 500, a hang-up and a cut body are tried again; the report lists the attempts."""
    turn = {"n": 0}

    async def flaky(exchange: Exchange) -> None:
        turn["n"] += 1
        if turn["n"] == 1:
            await exchange.json_answer({}, 500, {"retry-after-ms": "1"})
        elif turn["n"] == 2:
            exchange.cut()
        elif turn["n"] == 3:
            await exchange.start(kind="application/json")
            await exchange.piece(b'{"id": "x"')
            exchange.cut()
        else:
            await exchange.json_answer(completion("Hello"))

    async with plain(flaky, max_retries=3) as (_, client):
        client.router._rng = NoWait()
        got = await client.chat.completions.create(model="m", messages=MESSAGES)
        told = specroute.report(got)
    assert got.choices[0].message.content == "Hello"
    assert [a.outcome for a in told.attempts] == ["status 500", "connect", "truncated", "ok"]


class NoWait:
    """A generator whose jitter takes the whole delay away."""

    def random(self) -> float:
        return 4.0


async def test_retries_share_the_deadline() -> None:
    """A wait that would outlast it is not begun."""

    async def busy(exchange: Exchange) -> None:
        await exchange.json_answer({"error": {"message": "busy"}}, 503, {"retry-after": "30"})

    async with configured(busy, timeouts={"first_token": 5}) as (server, client):
        async with asyncio.timeout(2):
            with pytest.raises(openai.InternalServerError, match="busy"):
                await client.chat.completions.create(model="smart", messages=MESSAGES)
        assert len(server.seen) == 1


@pytest.mark.parametrize("first", ["silence", "429"])
@pytest.mark.parametrize("kind", [openai.AsyncOpenAI, AsyncSpecRoute])
async def test_a_plain_clients_timeout_is_of_each_attempt(kind: Any, first: str) -> None:
    """As openai's: one that is too slow, or asks to wait for longer than that, is tried again."""
    server: Loopback

    async def handle(exchange: Exchange) -> None:
        if len(server.seen) > 1:
            await exchange.json_answer(completion("Hello"))
        elif first == "429":
            await exchange.json_answer({}, 429, {"retry-after-ms": "300"})
        else:
            await exchange.gone.wait()

    async with Loopback(handle) as server:
        async with kind(api_key="k", base_url=server.url, timeout=0.2) as client:
            got = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert len(server.seen) == 2
    assert got.choices[0].message.content == "Hello"


async def test_many_at_once() -> None:
    """A hundred streams beside each other keep their own words."""

    async def echo(exchange: Exchange) -> None:
        word = exchange.json["messages"][0]["content"]
        await exchange.stream(chunks(*word))

    async with plain(echo) as (_, client):

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"w{number}"}], stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        assert await asyncio.gather(*map(one, range(100))) == [f"w{n}" for n in range(100)]

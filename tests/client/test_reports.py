"""``report()``, ``reports()`` and ``on_report=``: every way to get at what a request did."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pydantic
import pytest

from specroute import Report, report, reports
from specroute.http import supervisor
from specroute.types import Usage
from tests.client.world import MESSAGES, answer, configured, plain
from tests.support.loopback import DONE, Exchange, chunk, completion


async def test_a_completions_report() -> None:
    """Who answered, how long it took, what it used."""
    async with configured() as (_, client):
        got = await client.chat.completions.create(model="smart", messages=MESSAGES)
    told = report(got)
    assert (told.model, told.target, told.method, told.exactness) == (
        "smart",
        "lab:lab-model",
        "plain",
        "exact",
    )
    assert (told.complete, told.finish_reason, told.error) == (True, "stop", None)
    assert (told.prompt_tokens, told.completion_tokens) == (7, 2)
    assert (told.billed_prompt_tokens, told.billed_completion_tokens) == (7, 2)
    assert told.cost_usd is None
    assert told.ttft_s is not None and told.total_s is not None
    assert 0 < told.ttft_s <= told.total_s
    (attempt,) = told.attempts
    assert (attempt.target, attempt.purpose, attempt.outcome) == ("lab:lab-model", "plain", "ok")
    assert (attempt.usage, attempt.request_id) == (Usage(7, 2), "req-1")
    assert told.plan_reason
    assert Report.from_dict(json.loads(json.dumps(told.as_dict()))) == told


async def test_a_configured_price_gives_the_cost() -> None:
    """Dollars per million tokens, and ``None`` where the price isn't known."""

    from specroute import AsyncSpecRoute
    from tests.client.world import config
    from tests.support.loopback import Loopback

    async with Loopback(answer) as server:
        tables = config(server.url)
        tables["providers"]["lab"]["prices"] = {"input": 2.0, "output": 8.0}
        async with AsyncSpecRoute(config=tables) as client:
            got = await client.chat.completions.create(model="smart", messages=MESSAGES)
    assert report(got).cost_usd == pytest.approx((7 * 2 + 2 * 8) / 1e6)


async def test_a_streams_report_is_live() -> None:
    """Unfinished while it runs, final when it has ended."""
    async with plain() as (_, client):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        early = report(stream)
        async for part in stream:
            if part.choices[0].delta.content:
                middle = report(stream)
        late = report(stream)
    assert (early.complete, early.ttft_s, early.attempts) == (False, None, ())
    assert (middle.complete, middle.ttft_s is not None) == (False, True)
    assert (late.complete, late.finish_reason, late.ttft_s) == (True, "stop", middle.ttft_s)
    assert late.tpot_s is not None and late.total_s is not None
    assert early.id == middle.id == late.id


class Answer(pydantic.BaseModel):
    word: str


async def _json_answer(exchange: Exchange) -> None:
    text = '{"word":"hi"}'
    if exchange.json.get("stream"):
        await exchange.stream([chunk(text), chunk(finish="stop"), DONE])
    else:
        await exchange.json_answer(completion(text))


async def test_every_kind_of_answer_has_its_report() -> None:
    """Completions, ``.parse()``, ``.stream()``, raw and streaming raw responses, old and new."""
    async with plain(_json_answer) as (_, client):
        chat = client.chat.completions
        parsed = await chat.parse(model="m", messages=MESSAGES, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(word="hi")
        assert report(parsed).complete

        async with chat.stream(model="m", messages=MESSAGES, response_format=Answer) as events:
            async for _ in events:
                pass
            final = await events.get_final_completion()
            assert final.choices[0].message.parsed == Answer(word="hi")
            assert report(events).complete

        raw = await chat.with_raw_response.create(model="m", messages=MESSAGES)
        assert report(raw) == report(raw.parse()) == report(raw.http_response)
        raw = await chat.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
        stream = raw.parse()
        async for _ in stream:
            pass
        assert report(raw) == report(stream)
        assert report(raw).complete

        async with chat.with_streaming_response.create(model="m", messages=MESSAGES) as response:
            assert report(response) == report(await response.parse())
        async with chat.with_streaming_response.create(
            model="m", messages=MESSAGES, stream=True
        ) as response:
            async for _ in response.iter_bytes():
                pass
            assert report(response).complete


async def test_the_answer_is_otherwise_untouched() -> None:
    """The report is one extra field; the response's bytes are the provider's own."""
    async with plain(_json_answer) as (_, client):
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert json.loads(raw.text) == completion('{"word":"hi"}')
    got = raw.parse().model_dump()
    assert got.pop("specroute")["complete"] is True
    theirs = openai.types.chat.ChatCompletion.construct(**completion('{"word":"hi"}'))
    assert set(got) == set(theirs.model_dump())


@pytest.mark.parametrize("thing", [None, "text", {}, completion(), object()])
def test_what_is_not_ours_has_no_report(thing: Any) -> None:
    """A LookupError that says what report() takes."""
    with pytest.raises(LookupError, match="no report"):
        report(thing)


async def test_collecting() -> None:
    """All requests inside the block, tasks included, in the order of their start; blocks nest."""
    async with plain() as (_, client):

        async def call(name: str) -> None:
            await client.chat.completions.create(model=name, messages=MESSAGES)

        with reports() as outer:
            await call("a")
            with reports() as inner:
                task = asyncio.create_task(call("b"))
                await task
                stream = await client.chat.completions.create(
                    model="c", messages=MESSAGES, stream=True
                )
                assert not inner[-1].complete
                async for _ in stream:
                    pass
        await call("d")
    assert [r.model for r in outer] == ["a", "b", "c"]
    assert [r.model for r in inner[:]] == ["b", "c"]
    assert (len(inner), inner[-1].complete) == (2, True)
    assert inner[-1] == report(stream)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callback(asynchronous: bool) -> None:
    """Called once with each final report, a failed call's too; it may be async."""
    told: list[Report] = []
    called = asyncio.Event()

    async def later(one: Report) -> None:
        told.append(one)
        called.set()

    def now(one: Report) -> None:
        told.append(one)
        called.set()

    async def handle(exchange: Exchange) -> None:
        if exchange.json["model"] == "bad":
            await exchange.json_answer({"error": {"message": "no"}}, 400)
        else:
            await answer(exchange)

    async with plain(handle, on_report=later if asynchronous else now) as (_, client):
        copy = client.with_options(timeout=9)
        await copy.chat.completions.create(model="a", messages=MESSAGES)
        await called.wait()
        called.clear()
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="bad", messages=MESSAGES)
        await called.wait()
    assert [(r.model, r.complete, r.error) for r in told] == [
        ("a", True, None),
        ("bad", False, "Error code: 400 - no"),
    ]
    assert told[1].attempts[0].outcome == "status 400"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callback_that_fails_breaks_nothing(
    asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is logged."""
    called = asyncio.Event()

    def fails(_: Report) -> None:
        called.set()
        raise ValueError("the callback's own fault")

    async def fails_later(one: Report) -> None:
        fails(one)

    async with plain(on_report=fails_later if asynchronous else fails) as (_, client):
        got = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert got.choices[0].message.content == "Hello"
        await called.wait()
        await asyncio.sleep(0)
    assert "the callback's own fault" in caplog.text


async def test_closing_waits_for_an_asynchronous_callback() -> None:
    """The last report of a short script is delivered, too."""
    told: list[Report] = []

    async def writes(one: Report) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        told.append(one)

    async with plain(on_report=writes) as (_, client):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert [r.complete for r in told] == [True]


async def test_a_callback_that_hangs_does_not_keep_a_client_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is waited for for a while, then ended."""
    monkeypatch.setattr(supervisor, "FINISH_S", 0.05)
    ended = asyncio.Event()

    async def hangs(_: Report) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with plain(on_report=hangs) as (_, client):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert ended.is_set()

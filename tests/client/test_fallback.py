"""Fallback across targets before anything was delivered: who answers, what is said, how long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute
from specroute.plain import replies
from tests.client.test_faults import NoWait
from tests.client.world import MESSAGES, answer
from tests.support.loopback import DONE, Exchange, Handler, Loopback, event

SHORT = {"first_token": 0.3, "stall": 0.3}
""":func:`two`'s limits for its first server, where that is to be silent."""


@asynccontextmanager
async def two(
    first: Handler,
    second: Handler = answer,
    *,
    model: dict[str, Any] | None = None,
    timeouts: dict[str, float] | None = None,
    capabilities: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Loopback, Loopback, Any]]:
    """Two servers and a client whose model ``smart`` prefers the first."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Loopback(first))
        hub = await stack.enter_async_context(Loopback(second))
        tables = {
            "version": 1,
            "providers": {
                name: {
                    "profile": "generic",
                    "base_url": server.url,
                    "env_key": "LAB_KEY",
                    "timeouts": limits,
                    "capabilities": capabilities or {},
                }
                for name, server, limits in (("lab", lab, timeouts or {}), ("hub", hub, {}))
            },
            "models": {"smart": {"targets": ["lab:one", "hub:two"], **(model or {})}},
        }
        client = await stack.enter_async_context(
            AsyncSpecRoute(config=tables, **{"max_retries": 0, **options})
        )
        yield lab, hub, client


async def ask(client: Any, stream: bool, **more: Any) -> tuple[str, Any]:
    """The answer's text and its report."""
    got = await client.chat.completions.create(
        model="smart", messages=MESSAGES, stream=stream, **more
    )
    if not stream:
        return got.choices[0].message.content, specroute.report(got)
    text = "".join([c.choices[0].delta.content or "" async for c in got if c.choices])
    return text, specroute.report(got)


def status(code: int, error: Any = None, **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        await exchange.json_answer({"error": error or {"message": "no"}}, code, named)

    return handle


async def resets(exchange: Exchange) -> None:
    exchange.cut()


async def silent(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def opens_and_stalls(exchange: Exchange) -> None:
    """The role, and then nothing."""
    await exchange.start()
    await exchange.piece(
        event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    )
    await exchange.gone.wait()


async def html(exchange: Exchange) -> None:
    await exchange.send(200, b"<html>Welcome</html>", kind="text/html")


async def half_json(exchange: Exchange) -> None:
    await exchange.send(200, b'{"id": "x", "choices": [')


async def error_in_200(exchange: Exchange) -> None:
    await exchange.json_answer({"error": {"message": "overloaded", "code": 503}})


async def error_first(exchange: Exchange) -> None:
    if exchange.json.get("stream"):
        await exchange.stream([event({"error": {"message": "overloaded"}})])
    else:
        await error_in_200(exchange)


async def empty_stream(exchange: Exchange) -> None:
    if exchange.json.get("stream"):
        await exchange.stream([])
    else:
        await exchange.send(200, b"")


async def role_then_end(exchange: Exchange) -> None:
    role = event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    await exchange.stream([role] if exchange.json.get("stream") else [b"{"])


async def malformed(exchange: Exchange) -> None:
    await exchange.stream([b'data: {"choices":[{"delta":{"content":"x"}\n\n', DONE])


FAULTS: list[tuple[Handler, str]] = [
    (status(429), "status 429"),
    (status(500), "status 500"),
    (status(503), "status 503"),
    (status(401), "status 401"),
    (status(403), "status 403"),
    (status(404), "status 404"),
    (status(429, {"message": "no", "code": "insufficient_quota"}), "status 429"),
    (resets, "connect"),
    (silent, "first_token"),
    (html, "BadAnswer"),
    (half_json, "BadAnswer"),
    (error_in_200, "ErrorInBody"),
    (error_first, "ErrorInBody"),
]
STREAMED: list[tuple[Handler, str]] = [
    (opens_and_stalls, "first_token"),
    (empty_stream, "truncated"),
    (role_then_end, "truncated"),
    (malformed, "BadAnswer"),
]


@pytest.mark.parametrize(
    ("first", "outcome", "stream"),
    [(f, o, s) for f, o in FAULTS for s in (False, True)] + [(f, o, True) for f, o in STREAMED],
)
async def test_the_next_target_answers(first: Handler, outcome: str, stream: bool) -> None:
    """Whatever is wrong with the first; the report lists both and promises nothing of the first."""
    slow = first in (silent, opens_and_stalls)
    async with two(first, timeouts=SHORT if slow else None) as (_, hub, client):
        text, told = await ask(client, stream)
        asked = hub.seen[0].json
    assert text == "Hello"
    assert asked["model"] == "two"
    assert [(a.target, a.outcome) for a in told.attempts] == [
        ("lab:one", outcome),
        ("hub:two", "ok"),
    ]
    assert (told.target, told.complete) == ("hub:two", True)
    assert (told.exactness, told.exactness_reason) == (
        "heuristic",
        "answered by hub:two in the place of lab:one",
    )


async def test_the_same_model_elsewhere_is_bounded() -> None:
    """Another provider's deployment of the same model is not quite the same."""
    async with two(status(500), model={"targets": ["lab:one", "hub:One"]}) as (_, _, client):
        _, told = await ask(client, False)
    assert told.exactness == "bounded"
    assert told.exactness_reason == "answered by hub:One: the same model at another provider"


async def test_the_role_comes_once() -> None:
    """A role that was read before the first target failed is not handed on."""
    async with two(opens_and_stalls, timeouts=SHORT) as (_, _, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        got = [c async for c in stream]
    assert len({c.id for c in got}) == 1
    assert [c.choices[0].delta.role for c in got if c.choices].count("assistant") <= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_that_is_not_listed_stays(stream: bool) -> None:
    """``fallback_on`` decides; a refusal moves on with any of it, with none nothing does."""
    async with two(status(500), model={"fallback_on": ["429"]}) as (_, hub, client):
        with pytest.raises(openai.InternalServerError):
            await ask(client, stream)
        assert hub.seen == []
    async with two(status(401), model={"fallback_on": ["429"]}) as (_, hub, client):
        assert (await ask(client, stream))[0] == "Hello"
    async with two(status(401), model={"fallback_on": []}) as (_, hub, client):
        with pytest.raises(openai.AuthenticationError):
            await ask(client, stream)
        assert hub.seen == []


async def test_the_requests_own_fault_stays() -> None:
    """A 400 is the caller's to mend: no target is asked for a second opinion."""
    async with two(status(400)) as (lab, hub, client):
        with pytest.raises(openai.BadRequestError):
            await ask(client, False)
        assert (len(lab.seen), hub.seen) == (1, [])


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (status(503), status(401), openai.InternalServerError),
        (status(401), status(503), openai.InternalServerError),
        (status(401), status(403), openai.AuthenticationError),
        (resets, status(429), openai.RateLimitError),
    ],
)
async def test_when_all_fail_the_most_telling_failure_stands(
    first: Handler, second: Handler, error: type[Exception]
) -> None:
    """The last one, but a refusal only where there is nothing else; every attempt is listed."""
    with specroute.reports() as reports:
        async with two(first, second) as (_, _, client):
            with pytest.raises(error):
                await ask(client, False)
    assert [a.target for a in reports[0].attempts] == ["lab:one", "hub:two"]
    assert not reports[0].complete


async def test_retries_go_round_the_targets() -> None:
    """Each target is asked once before one is asked again."""
    counts = {"lab": 0, "hub": 0}

    def failing(name: str, times: int) -> Handler:
        async def handle(exchange: Exchange) -> None:
            counts[name] += 1
            if counts[name] > times:
                await answer(exchange)
            else:
                await exchange.json_answer({}, 500, {"retry-after-ms": "1"})

        return handle

    async with two(failing("lab", 1), failing("hub", 9), max_retries=2) as (_, _, client):
        text, told = await ask(client, False)
    assert text == "Hello"
    assert [a.target for a in told.attempts] == ["lab:one", "hub:two", "lab:one"]
    assert told.exactness == "exact"


async def test_quota_is_not_retried() -> None:
    """No wait brings the money back."""
    async with two(
        status(429, {"message": "no", "code": "insufficient_quota"}), status(500), max_retries=2
    ) as (lab, _, client):
        client.router._rng = NoWait()
        with pytest.raises(openai.APIStatusError):
            await ask(client, False)
        assert len(lab.seen) == 1


async def test_a_cooling_target_is_gone_round() -> None:
    """For as long as it said, and no longer; the report says why."""
    turn = {"lab": 0}

    async def lab_once(exchange: Exchange) -> None:
        turn["lab"] += 1
        if turn["lab"] == 1:
            await exchange.json_answer({}, 429, {"retry-after": "30"})
        else:
            await answer(exchange)

    async with two(lab_once) as (lab, _, client):
        clock = Clock()
        client.router.health.clock = clock
        await ask(client, False)
        _, told = await ask(client, False)
        assert len(lab.seen) == 1
        assert told.notes == ("lab:one cools for 30.0 s (retry-after): hub:two was asked first",)
        clock.now += 31
        _, told = await ask(client, True)
        assert (told.target, told.exactness) == ("lab:one", "exact")


class Clock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_when_all_cool_a_short_wait_is_waited() -> None:
    """The one that is due first is asked when it is due."""

    def once(wait: str) -> Handler:
        seen: list[float] = []

        async def handle(exchange: Exchange) -> None:
            seen.append(0)
            if len(seen) == 1:
                await exchange.json_answer({}, 429, {"retry-after-ms": wait})
            else:
                await answer(exchange)

        return handle

    async with two(once("20000"), once("150")) as (_, _, client):
        with pytest.raises(openai.RateLimitError):
            await ask(client, False)
        before = time.monotonic()
        _, told = await ask(client.with_options(max_retries=1), False)
        assert told.target == "hub:two"
        assert time.monotonic() - before < 5


async def test_when_all_cool_for_too_long_it_is_said() -> None:
    """A 429 of our own with the wait, and nothing is sent: no time, or no retry to wait for."""
    limited = status(429, retry_after="60")
    async with two(limited, limited, timeouts={"total": 20}) as (lab, hub, client):
        with pytest.raises(openai.RateLimitError):
            await ask(client, False)
        with pytest.raises(specroute.AllCooling):
            await ask(client, False)
        with pytest.raises(specroute.AllCooling) as caught:
            await ask(client.with_options(max_retries=2), False)
        assert isinstance(caught.value, openai.RateLimitError)
        assert 55 < caught.value.wait_s <= 60
        assert int(caught.value.response.headers["retry-after"]) in range(55, 61)
        assert "lab:one cools for" in str(caught.value)
        assert (len(lab.seen), len(hub.seen)) == (1, 1)


async def test_a_circuit_opens_and_one_request_probes() -> None:
    """After five failures in a row the target is left alone, then asked by one request at a time."""
    state: dict[str, Any] = {"down": True, "gate": asyncio.Event()}

    async def lab_server(exchange: Exchange) -> None:
        if state["down"]:
            await exchange.json_answer({}, 500)
        else:
            await state["gate"].wait()
            await answer(exchange)

    async with two(lab_server) as (lab, hub, client):
        clock = Clock()
        client.router.health.clock = clock
        for _ in range(7):
            await ask(client, False)
        assert (len(lab.seen), len(hub.seen)) == (5, 7)
        state["down"] = False
        clock.now += 11
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(client, False)) for _ in range(3)]
            while not (asked[1].done() and asked[2].done()):
                await asyncio.wait(asked[1:])
            state["gate"].set()
        assert [a.result()[1].target for a in asked] == ["lab:one", "hub:two", "hub:two"]
        _, told = await ask(client, False)
        assert told.target == "lab:one"


async def test_a_target_that_is_alone_is_asked_whatever_its_circuit() -> None:
    """There is nobody else to ask."""
    async with two(status(500), model={"targets": ["lab:one"]}) as (lab, _, client):
        for _ in range(7):
            with pytest.raises(openai.InternalServerError):
                await ask(client, False)
        assert len(lab.seen) == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_timeout_spans_all_targets(stream: bool) -> None:
    """Two targets do not double it."""
    async with two(silent, silent, timeouts={"first_token": 5}) as (_, _, client):
        before = time.monotonic()
        with pytest.raises(openai.APITimeoutError):
            await ask(client, stream, timeout=0.3)
        assert time.monotonic() - before < 3


async def test_total_spans_all_targets() -> None:
    """It is the preferred target's."""
    async with two(silent, silent, timeouts={"first_token": 0.3, "total": 0.4}) as (_, _, client):
        with pytest.raises(specroute.DeadlineExceeded) as caught:
            await ask(client, True)
    assert caught.value.which in ("total", "first_token")


async def test_a_body_that_can_not_be_sent_again_is_sent_once() -> None:
    """Nothing is retried or moved that can't be replayed."""

    async def pieces() -> AsyncIterator[bytes]:
        yield json.dumps({"model": "smart", "messages": MESSAGES}).encode()

    async with two(status(500), max_retries=2) as (lab, hub, client):
        with pytest.raises(openai.APIError):
            await client.post(
                "/chat/completions",
                cast_to=object,
                content=pieces(),
                options={"headers": {"content-type": "application/json"}},
            )
        assert len(lab.seen) + len(hub.seen) <= 1


@pytest.mark.parametrize("ends", [{0}, {0, 1}])
async def test_all_choices_must_have_ended(ends: set[int]) -> None:
    """n = 2 and one finish_reason without [DONE] is truncated."""

    def part(index: int, finish: str | None) -> bytes:
        return event(
            {
                "id": "x",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": finish}],
            }
        )

    async def both(exchange: Exchange) -> None:
        last = [part(i, "stop") for i in sorted(ends)]
        await exchange.stream([part(0, None), part(1, None), *last])

    async with two(both, model={"targets": ["lab:one"]}) as (_, _, client):
        stream = await client.chat.completions.create(
            model="smart", messages=MESSAGES, stream=True, n=2
        )
        if ends == {0, 1}:
            assert len([c async for c in stream]) == 4
        else:
            with pytest.raises(specroute.StreamTruncated) as caught:
                async for _ in stream:
                    pass
            assert isinstance(caught.value, openai.APIConnectionError)


@pytest.mark.parametrize("stream", [False, True])
async def test_nonsense_is_asked_for_again(stream: bool) -> None:
    """A target that is alone and sends a web page or an error under a good status, once."""
    for nonsense in (html, error_first):
        seen: list[int] = []

        async def once(
            exchange: Exchange, seen: list[int] = seen, nonsense: Handler = nonsense
        ) -> None:
            seen.append(1)
            await (nonsense if len(seen) == 1 else answer)(exchange)

        model = {"targets": ["lab:one"]}
        async with two(once, model=model, max_retries=1) as (_, _, client):
            client.router._rng = NoWait()
            text, told = await ask(client, stream)
        assert (text, len(told.attempts)) == ("Hello", 2)


async def test_a_limit_of_the_config_is_gone_round() -> None:
    """A provider without room under its ``limits`` is not waited for while another may have some."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Loopback(answer))
        hub = await stack.enter_async_context(Loopback(answer))
        tables = {
            "version": 1,
            "providers": {
                name: {
                    "profile": "generic",
                    "base_url": server.url,
                    "env_key": "LAB_KEY",
                    "limits": {"rpm": rpm},
                    "timeouts": {"total": 20},
                }
                for name, server, rpm in (("lab", lab, 1), ("hub", hub, 2))
            },
            "models": {"smart": {"targets": ["lab:one", "hub:two"]}},
        }
        client = await stack.enter_async_context(AsyncSpecRoute(config=tables, max_retries=0))
        told = [(await ask(client, False))[1] for _ in range(3)]
        assert [t.target for t in told] == ["lab:one", "hub:two", "hub:two"]
        assert [a.outcome for a in told[1].attempts] == ["limit", "ok"]
        # Nobody has room, and the next place is a minute away.
        with pytest.raises(specroute.LimitReached):
            await ask(client, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_whose_text_never_comes_is_not_waited_for(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is enough to ask the next target, long before ``first_token`` has passed."""
    monkeypatch.setattr(replies, "ERROR_BODY_S", 0.05)

    async def says_no_more(exchange: Exchange) -> None:
        await exchange.start(503, kind="application/json")
        await exchange.gone.wait()

    async with two(says_no_more) as (lab, _, client):
        text, report = await ask(client, stream)
        assert [each.gone.is_set() for each in lab.seen] == [True]
    assert text == "Hello"
    assert [a.outcome for a in report.attempts] == ["status 503", "ok"]


async def test_a_moment_of_cooling_is_waited_for_without_retries() -> None:
    """``retry-after-ms: 20`` and the next call at once: it is answered, not refused unasked."""
    answers = [status(429, **{"retry-after-ms": "20"}), answer]

    async def in_turn(exchange: Exchange) -> None:
        await answers.pop(0)(exchange)

    async with (
        Loopback(in_turn) as server,
        AsyncSpecRoute(config=one(server), max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError):
            await ask(client, False)
        text, _ = await ask(client, False)
    assert text == "Hello"


def one(server: Loopback) -> dict[str, Any]:
    """The config of a model with one target."""
    lab = {"profile": "generic", "base_url": server.url, "env_key": ""}
    return {"version": 1, "providers": {"lab": lab}, "models": {"smart": {"targets": ["lab:one"]}}}


async def test_a_deadline_is_named_as_it_was_set() -> None:
    """Not as what the first target left of it."""
    limits = {"first_token": 0.2, "total": 0.4}
    async with two(silent, silent, timeouts=limits) as (_, _, client):
        with pytest.raises(openai.APITimeoutError, match=r"0\.4 s \(timeouts\.total\)"):
            await ask(client, True)

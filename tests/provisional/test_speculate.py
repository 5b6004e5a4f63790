"""``client.speculate()``: the plain answer, with drafted text shown before it is certain."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest

from specroute import AsyncSpecRoute, Commit, Done, Provisional, RequestError, Rollback, SpecRoute
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_exits import LONG, quiet
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy

pytestmark = pytest.mark.alone

PLAIN = {"preset": "fixed", "method": "plain"}
CHAT: Any = [{"role": "user", "content": "go"}]


async def follow(client: AsyncSpecRoute, **create: Any) -> tuple[str, list[Any]]:
    """(the text committed, all events), held to the rules of a screen on the way."""
    create.setdefault("temperature", 0)
    if "prompt" not in create:
        create.setdefault("messages", CHAT)
    committed = provisional = ""
    events = []
    async for event in client.speculate(model="m", **create):
        assert not events or not isinstance(events[-1], Done)
        events.append(event)
        match event:
            case Provisional(text):
                provisional += text
            case Rollback(n):
                assert 0 < n <= len(provisional)
                provisional = provisional[:-n]
            case Commit(text):
                assert provisional.startswith(text) or text.startswith(provisional)
                committed += text
                provisional = provisional[len(text) :]
    assert isinstance(events[-1], Done)
    assert provisional == ""
    return committed, events


def busy(times: int) -> Any:
    """The first so many streamed requests get 503."""
    left = [times]

    def judge(path: str, body: Any, before: int) -> Fault | None:
        if body.get("stream") and left[0]:
            left[0] -= 1
            return Fault("status", 503)
        return None

    return judge


@pytest.mark.parametrize("wrong", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("method", ["plain", "score", "prefix"])
async def test_the_screen_ends_as_the_plain_stream(method: str, wrong: float) -> None:
    """By chat and by completions, with a limit and with a stop string, good draft or bad."""
    spec = script()
    policy = {"preset": "fixed", "method": method, "num_speculative_tokens": 4}
    with ReferenceServer(spec, pace="tpot=1ms") as server:
        drafter = EchoDrafter(spec, wrong=wrong, seed=3)
        async with speculating(World(spec), server, drafter=drafter, policy=policy) as client:
            await client.warm_up()
            plain = client.with_options(policy=PLAIN)
            for more in ({}, {"max_tokens": 9}, {"stop": " fox jumps"}):
                expected = await ask(plain, **more)
                text, events = await follow(client, **more)
                assert text == expected.text
                report = events[-1].report
                assert (report.complete, report.finish_reason) == (True, expected.finish)
                assert report.method == method
            expected = await ask(plain, chat=False, prompt="<|user|>go<|end|><|assistant|>",
                                 max_tokens=30)  # fmt: skip
            text, _ = await follow(client, prompt="<|user|>go<|end|><|assistant|>", max_tokens=30)
            assert text == expected.text
            await quiet(server)
        assert not drafter.open_sessions


async def test_the_openai_stream_never_shows_it() -> None:
    """Without being asked for there is no chunk of provisional text."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with speculating(World(spec), server, drafter=EchoDrafter(spec)) as client:
            stream = await client.chat.completions.create(
                model="m", messages=CHAT, temperature=0, stream=True
            )
            chunks = [chunk async for chunk in stream]
            assert not any((chunk.model_extra or {}).get("specroute") for chunk in chunks)
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT


@pytest.mark.parametrize("method", ["plain", "score", "prefix"])
async def test_the_first_text_comes_with_the_draft_not_with_the_target(method: str) -> None:
    """At a TTFT of 400 ms; the report has both times."""
    spec = script()
    policy = {"preset": "fixed", "method": method, "num_speculative_tokens": 4, "max_rounds": 1}
    with ReferenceServer(spec, pace="ttft=400ms") as server:
        drafter = EchoDrafter(spec)
        async with speculating(World(spec), server, drafter=drafter, policy=policy) as client:
            await client.warm_up()
            shown = []
            for _ in range(2):
                _, events = await follow(client)
                assert isinstance(events[0], Provisional)
                shown.append(events[-1].report)
            best = min(shown, key=lambda r: r.first_text_s or 9)
            assert best.ttft_s is not None and best.ttft_s >= 0.4
            # score renders the chat first, which takes a round trip of its own
            assert best.first_text_s is not None
            assert best.first_text_s < (0.16 if method == "plain" else 0.5 * best.ttft_s + 0.4)


async def test_confirmed_text_is_committed_without_being_taken_back() -> None:
    """A draft that is right all along is never rolled back."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=2ms,ttft=100ms") as server:
        async with speculating(
            World(spec), server, drafter=EchoDrafter(spec), policy=PLAIN
        ) as client:
            _, events = await follow(client)
            assert not any(isinstance(e, Rollback) for e in events)
            painted = "".join(e.text for e in events if isinstance(e, Provisional))
            assert TEXT.startswith(painted) and painted


async def test_a_draft_that_is_always_wrong_is_given_up() -> None:
    """Two tries, then the answer comes alone."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=3ms,ttft=50ms") as server:
        drafter = EchoDrafter(spec, wrong=1.0, seed=1)
        async with speculating(World(spec), server, drafter=drafter, policy=PLAIN) as client:
            text, events = await follow(client)
            assert text == TEXT
            assert sum(isinstance(e, Rollback) for e in events) == 2


@pytest.mark.parametrize("mode", ["load", "open", "raise", "crash", "hang", "empty"])
async def test_a_failing_draft_leaves_the_plain_answer(mode: str) -> None:
    """Whatever the drafter does; the report says so where it failed."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=1ms,ttft=30ms") as server:
        drafter = EchoDrafter(spec, mode=mode)
        async with speculating(World(spec), server, drafter=drafter, policy=PLAIN) as client:
            text, events = await follow(client)
            assert text == TEXT
            assert not any(isinstance(e, Provisional) for e in events) or mode == "load"
            notes = events[-1].report.notes
            if mode in ("open", "raise", "crash"):
                assert any("'table' failed" in note for note in notes)
        assert not drafter.open_sessions


async def test_an_error_before_any_text_is_raised_as_create_would() -> None:
    """The provider's own status and class."""
    with ReferenceServer(script(), api_key="right") as server:
        async with speculating(
            World(script()), server, drafter=EchoDrafter(script(), mode="empty"), policy=PLAIN
        ) as client:
            with pytest.raises(openai.AuthenticationError):
                await follow(client)
            with pytest.raises(openai.AuthenticationError):
                async with client.speculate(model="m", messages=CHAT):
                    pass


async def test_an_error_after_provisional_text_ends_the_events() -> None:
    """After the retries that the plain call has; no Done, and nothing was committed."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with (
            Proxy(server.base_url, busy(9)) as proxy,
            speculating(
                World(spec), proxy, drafter=EchoDrafter(spec), policy=PLAIN, max_retries=1
            ) as client,
        ):
            events = []
            with pytest.raises(openai.InternalServerError):
                async for event in client.speculate(model="m", messages=CHAT, temperature=0):
                    events.append(event)
            assert isinstance(events[0], Provisional)
            assert not any(isinstance(e, Commit | Done) for e in events)


async def test_a_retry_under_provisional_text_is_not_seen() -> None:
    """The answer comes from the second attempt, on the same screen."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with (
            Proxy(server.base_url, busy(1)) as proxy,
            speculating(World(spec), proxy, drafter=EchoDrafter(spec), policy=PLAIN) as client,
        ):
            await client.warm_up()
            text, events = await follow(client)
            assert text == TEXT
            assert [a.outcome for a in events[-1].report.attempts] == ["status 503", "ok"]


@pytest.mark.parametrize("events", [1, 3, 12])
@pytest.mark.parametrize("method", ["plain", "score", "prefix"])
async def test_leaving_early_ends_everything_at_once(method: str, events: int) -> None:
    """Draft and target, within 100 ms, with a final report."""
    spec = script(LONG)
    policy = {"preset": "fixed", "method": method, "num_speculative_tokens": 4}
    with ReferenceServer(spec, pace="tpot=10ms,ttft=50ms") as server:
        drafter = EchoDrafter(spec, wrong=0.1)
        async with speculating(World(spec), server, drafter=drafter, policy=policy) as client:
            await client.warm_up()
            before = asyncio.all_tasks()
            stream = client.speculate(model="m", messages=CHAT, temperature=0)
            async with stream:
                async for _ in stream:
                    events -= 1
                    if not events:
                        break
            assert not {t for t in asyncio.all_tasks() - before if not t.done()}
            assert not drafter.open_sessions
            await quiet(server)
            assert not stream.report.complete
            assert (stream.report.error or "").endswith("by the caller")


async def test_a_cancelled_reader_ends_everything_at_once() -> None:
    """Also while only the draft has said something."""
    spec = script(LONG)
    with ReferenceServer(spec, pace="ttft=300ms") as server:
        drafter = EchoDrafter(spec)
        async with speculating(World(spec), server, drafter=drafter, policy=PLAIN) as client:
            seen = asyncio.Event()

            async def read() -> None:
                async with client.speculate(model="m", messages=CHAT) as stream:
                    async for _ in stream:
                        seen.set()

            task = asyncio.create_task(read())
            await seen.wait()
            started = time.perf_counter()
            task.cancel()
            await asyncio.wait([task])
            assert time.perf_counter() - started < 0.1
            assert not drafter.open_sessions


async def test_what_is_no_text_comes_with_its_delta() -> None:
    """A tool call: nothing is drafted, nothing is lost."""
    spec = script()
    spec["answers"] = [{"when": "go", "text": '{"city": "Oslo"}', "tool": "weather"}]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    with ReferenceServer(spec) as server:
        async with speculating(World(spec), server, drafter=EchoDrafter(spec)) as client:
            text, events = await follow(client, tools=tools)
            assert text == ""
            called = "".join(
                call.function.arguments or ""
                for e in events
                if isinstance(e, Commit) and e.delta.tool_calls
                for call in e.delta.tool_calls
            )
            assert called == '{"city": "Oslo"}'


async def test_a_plain_client_has_committed_text_alone() -> None:
    """No config, no drafts: the same events but for the provisional ones."""
    with ReferenceServer(script()) as server:
        async with AsyncSpecRoute(base_url=server.base_url, api_key="any") as client:
            kinds = {type(e) async for e in client.speculate(model="chain", messages=CHAT)}
            assert kinds == {Commit, Done}


async def test_bad_arguments_are_named() -> None:
    """Several answers, or none of a stream."""
    async with AsyncSpecRoute(base_url="http://127.0.0.1:9/v1", api_key="any") as client:
        with pytest.raises(RequestError, match="n = 1"):
            client.speculate(model="m", messages=CHAT, n=2)
        with pytest.raises(RequestError, match="leave 'stream' out"):
            client.speculate(model="m", messages=CHAT, stream=False)
        with pytest.raises(openai.BadRequestError, match="needs stream=True"):
            await client.chat.completions.create(
                model="m", messages=CHAT, extra_body={"specroute": {"provisional": True}}
            )


async def test_the_synchronous_client_has_the_same_events() -> None:
    """In a thread of its own, to the end and left early."""
    spec = script()
    drafts = {"n": {"kind": "ngram"}}
    with ReferenceServer(spec, pace="tpot=1ms") as server:
        config = {
            "version": 1,
            "providers": {"lab": {"profile": "reference", "base_url": server.base_url}},
            "drafts": drafts,
            "models": {"m": {"targets": ["lab:chain"], "drafts": ["n"], "policy": PLAIN}},
        }

        def work() -> tuple[str, Any]:
            with SpecRoute(config=config) as client:
                with client.speculate(model="m", messages=CHAT, temperature=0) as left:
                    next(left)
                events = list(client.speculate(model="m", messages=CHAT, temperature=0))
                text = "".join(e.text for e in events if isinstance(e, Commit))
                return text, events[-1]

        text, last = await asyncio.to_thread(work)
        assert text == TEXT
        assert isinstance(last, Done) and last.report.complete

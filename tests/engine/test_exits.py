"""A caller who leaves early ends everything within 100 ms, whichever way it leaves."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import openai
import pytest

from specroute import report
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.world import World, speculating

pytestmark = pytest.mark.alone

LONG = " ".join(["one, two, three, four; six."] * 40)
METHODS = ["score", "in flight", "prefix", "predict", "hand-over"]


@asynccontextmanager
async def running(
    method: str, *, pace: str = "tpot=10ms", k: int = 4, wrong: float = 0.2, **options: Any
) -> AsyncIterator[tuple[ReferenceServer, Any, EchoDrafter]]:
    world = World(script(LONG))
    name = "score" if method in ("hand-over", "in flight") else method
    policy = {"preset": "fixed", "method": name, "num_speculative_tokens": k}
    if method == "hand-over":
        policy["max_rounds"] = 1
    if method == "in flight":
        policy["rounds_in_flight"] = 3
    drafter = EchoDrafter(world.spec, wrong=wrong)
    with ReferenceServer(world.spec, pace=pace) as server:
        async with speculating(world, server, drafter=drafter, policy=policy, **options) as client:
            await client.warm_up()
            yield server, client, drafter
        assert not drafter.open_sessions


def active(server: ReferenceServer) -> int:
    """Sequences that the server is stepping or about to."""
    assert server.server is not None
    engine = server.server.engine
    choices = [*engine._running, *(choice for _, choice in engine._waiting)]
    return sum(not choice.cancelled and choice.finish is None for choice in choices)


async def quiet(server: ReferenceServer, within: float = 0.1) -> None:
    """Wait until the server works on nothing; fail after ``within`` seconds (plus one step)."""
    started = time.perf_counter()
    while active(server):
        assert time.perf_counter() - started < within + 0.02
        await asyncio.sleep(0.001)


def steps(server: ReferenceServer) -> int:
    assert server.server is not None
    return server.server.engine.steps


def busy(server: ReferenceServer, after: int) -> bool:
    return bool(active(server)) and steps(server) >= after


async def until(true: Callable[[], bool]) -> None:
    """Look every millisecond, for at most five seconds."""
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


async def open_stream(client: Any) -> Any:
    return await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "go"}], temperature=0, stream=True
    )


async def some(stream: Any, chunks: int) -> None:
    async for _ in stream:
        chunks -= 1
        if not chunks:
            return


def mine(before: set[Any]) -> set[Any]:
    return {t for t in asyncio.all_tasks() - before if not t.done()}


async def gone(before: set[Any]) -> None:
    """Every task begun since is over within 100 ms, those included that the collection of openai's
    own dropped generators begins meanwhile."""
    clock = asyncio.get_running_loop().time
    until = clock() + 0.1
    while (left := mine(before)) and clock() < until:
        await asyncio.wait(left, timeout=max(until - clock(), 0))
    assert not left


@pytest.mark.parametrize("chunks", [1, 4, 9])
@pytest.mark.parametrize("method", METHODS)
async def test_closing_a_stream_ends_every_call(method: str, chunks: int) -> None:
    """After a break; no task is left and the draft's session is closed."""
    async with running(method) as (server, client, drafter):
        before = asyncio.all_tasks()
        stream = await open_stream(client)
        await some(stream, chunks)
        await stream.close()
        assert not mine(before)
        assert not drafter.open_sessions
        await quiet(server)
        shown = report(stream)
        assert not shown.complete
        assert shown.error == "closed by the caller"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_cancelling_the_task_ends_every_call(method: str, stream: bool) -> None:
    """Before the first text and in the middle of the answer."""
    async with running(method) as (server, client, drafter):
        before = asyncio.all_tasks()
        for generated in (0, 8):
            task = asyncio.create_task(ask(client, stream=stream))
            await until(partial(busy, server, steps(server) + generated))
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            del task
            gc.collect()
            await quiet(server)
            await gone(before)
            assert not drafter.open_sessions


@pytest.mark.parametrize("method", METHODS)
async def test_a_dropped_stream_ends_every_call(method: str) -> None:
    """Without close: the collector's work."""
    async with running(method) as (server, client, drafter):
        before = asyncio.all_tasks()
        stream = await open_stream(client)
        await stream.__anext__()
        del stream
        gc.collect()
        await asyncio.sleep(0)
        await quiet(server)
        await gone(before)
        assert not drafter.open_sessions


@pytest.mark.parametrize("method", METHODS)
async def test_closing_the_client_ends_every_call(method: str) -> None:
    """In the middle of an answer; its reader gets an end, not a wait."""
    async with running(method) as (server, client, drafter):
        stream = await open_stream(client)
        await some(stream, 2)
        await client.close()
        await quiet(server)
        assert not drafter.open_sessions
        async with asyncio.timeout(1):
            try:
                async for _ in stream:
                    pass
            except openai.APIError:
                pass


@pytest.mark.parametrize("method", METHODS)
async def test_a_held_stream_stops_at_the_run_ahead_bound_and_then_for_good(method: str) -> None:
    """64 chunks ahead of its reader; after ``timeouts.idle`` the answer is abandoned."""
    provider = {"timeouts": {"idle": 0.4}}
    async with running(method, pace="", k=1, wrong=1.0, provider=provider) as (
        server,
        client,
        drafter,
    ):
        stream = await open_stream(client)
        await stream.__anext__()
        await until(lambda: report(stream).error is not None)
        assert report(stream).completion_tokens is not None
        assert report(stream).completion_tokens <= 64 + 4 * (1 + 3)
        await quiet(server)
        assert not drafter.open_sessions
        count = 0
        with pytest.raises(openai.APIError, match="not read"):
            async for _ in stream:
                count += 1
        assert 32 <= count <= 70


async def test_an_answer_read_to_its_end_leaves_nothing() -> None:
    """Tasks, sessions, sequences: twenty answers side by side, half of them left early."""
    world = World(script())
    drafter = EchoDrafter(world.spec, wrong=0.3)
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, drafter=drafter, method="prefix") as client:
            await client.warm_up()
            before = asyncio.all_tasks()

            async def one(i: int) -> None:
                if i % 2:
                    assert (await ask(client)).text == TEXT
                else:
                    async with await open_stream(client) as stream:
                        await some(stream, 1 + i % 5)

            await asyncio.gather(*map(one, range(20)))
            await quiet(server)
            await gone(before)
            assert not drafter.open_sessions

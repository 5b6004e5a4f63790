"""A store that goes, comes back or holds nonsense: no request fails or waits, and it heals."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from specroute.sharing import server, worker
from specroute.sharing.server import Server
from specroute.sharing.worker import State
from tests.sharing.world import Worker, workers
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.alone


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits and tries follow each other at once."""
    monkeypatch.setattr(worker, "PERIOD_S", 0.01)
    monkeypatch.setattr(worker, "LEAST_WAIT_S", 0.01)
    monkeypatch.setattr(worker, "MOST_WAIT_S", 0.05)
    monkeypatch.setattr(server, "ANSWER_S", 0.2)


async def until(worker_: Worker, state: State) -> None:
    async with asyncio.timeout(10):
        while worker_.sharing.state is not state:  # noqa: ASYNC110 - nobody waits for it
            await asyncio.sleep(0.005)


async def weight(worker_: Worker, least: float) -> None:
    async with asyncio.timeout(10):
        while worker_.figures.rounds_seen.weight < least:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("quick")
async def test_a_server_that_dies_is_missed_once_and_found_again(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What was measured meanwhile is told then, and what others knew they still know, though the
    server has lost everything."""
    async with workers(own_server) as (a, b):
        a.sharing.start()
        b.sharing.start()
        a.answer(10)
        await weight(b, 100)
        with caplog.at_level(logging.WARNING, "specroute"):
            own_server.stop()
            await until(a, State.AWAY)
            await until(b, State.AWAY)
            a.answer(10)  # goes on alone
            own_server.start()
            await until(a, State.SHARED)
            await until(b, State.SHARED)
            await weight(b, 200)
        assert b.figures.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight)
        said = [r.message for r in caplog.records]
        assert len([m for m in said if "is away" in m]) == 2  # each of them once
        assert len([m for m in said if "is back" in m]) == 2


@pytest.mark.usefixtures("quick")
async def test_a_server_that_stands_still_keeps_nobody_waiting(own_server: RedisServer) -> None:
    """kill -STOP: measuring goes on at its own pace, the loop too; kill -CONT: it catches up."""
    async with workers(own_server) as (a, b):
        a.sharing.start()
        b.sharing.start()
        own_server.pause()
        began = time.perf_counter()
        a.answer(10)
        assert time.perf_counter() - began < 0.1
        longest, ticked = 0.0, time.perf_counter()
        while a.sharing.state is not State.AWAY:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, ticked = max(longest, now - ticked), now
        assert longest < server.ANSWER_S
        assert a.figures.rounds_seen.weight > 100
        own_server.resume()
        await weight(b, 100)


async def test_a_worker_that_missed_messages_starts_from_figures(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps what it has measured itself and told nobody."""
    async with workers(redis_server) as (a, b):
        a.answer(5)
        await a.visits()
        await b.visits()
        b.answer(5)  # away from now on
        a.answer(30)
        await a.visits(2)
        with redis_server.client() as client:
            (stream,) = client.keys("specroute:learned:*:notes")
            client.xtrim(stream, maxlen=0)
        a.answer(1)
        await a.visits()
        await b.joins()
        assert b.sharing.counts["gaps"] == 1
        await a.visits()
        assert b.figures.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight, rel=0.02)


async def test_what_waits_is_bounded_and_what_is_lost_counted(redis_server: RedisServer) -> None:
    """The oldest goes."""
    async with workers(redis_server, 1) as (a,):
        for _ in range(worker.MOST_WAITING + 7):
            a.sharing.told(("draft_time", "small", 0.02))
        assert len(a.sharing._waiting) == worker.MOST_WAITING
        assert a.sharing.counts["lost"] == 7


BAD = {
    "no JSON": {"d": b"{"},
    "no object": {"d": b"[]"},
    "a NaN": {"d": b'{"answer":[[0,0,NaN]],"classes":["c"]}'},
    "another shape": {"d": b'{"answer":[[0]],"classes":["c"]}'},
    "no such class": {"d": b'{"answer":[[0,7,80]]}'},
    "no such target": {"d": b'{"answer":[[9,0,80]],"classes":["c"]}'},
    "more passed than judged": {"d": b'{"passed":[[0,1,0,"argmax",null,9,3,0]],"classes":["c"]}'},
    "a time below 0": {"d": b'{"verify_time":[[0,"argmax",-1,100,4]]}'},
    "an endless account": {"d": b'{"accounts":[["p",0,"c",1e999,0,0,0,1,null,null]]}'},
    "deep": {"d": b"[" * 100_000},
    "no number": {"n": b"x"},
    "no text": {"w": b"\xff"},
    "a newer version": {"v": b"99", "d": b"\x00 of another time"},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_message_of_another_shape_is_skipped_and_said_once(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Those before and after it are heard; nothing of it is entered."""
    async with workers(redis_server) as (a, b):
        a.answer(3)
        await a.visits()
        with redis_server.client() as client, caplog.at_level(logging.WARNING, "specroute"):
            (stream,) = client.keys("specroute:learned:*:notes")
            for i in range(2):
                good = server.fields("someone", "h", i + 1, b"{}")
                client.xadd(stream, {**good, **BAD[name]})
            client.xadd(stream, {"x": "y"})
            a.answer(3)
            await a.visits()
            await b.visits()
        assert b.figures.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight)
        assert b.sharing.counts["skipped"] == 3
        said = [r.message for r in caplog.records if "some is skipped" in r.message]
        assert len(said) in (2, 4)  # a and b; a newer version is another reason
        assert b.sharing.state is State.SHARED


@pytest.mark.parametrize("data", [b"", b"x", b"x\x9c", "newer", "torn", "another"])
async def test_figures_that_cannot_be_read_are_left_aside(
    redis_server: RedisServer, data: bytes | str
) -> None:
    """The stream is heard from its beginning instead."""
    import json
    import zlib

    async with workers(redis_server, 1) as (a,):
        a.answer(5)
        await a.visits(2)
        with redis_server.client() as client:
            raw = redis_server.raw()
            (key, *more) = client.keys("specroute:learned:*:whole*")
            whole = json.loads(zlib.decompress(raw.get(key)))
            if data == "newer":
                data = zlib.compress(json.dumps({**whole, "version": 99}).encode())
            elif data == "torn":
                data = raw.get(key)[:200]
            elif data == "another":
                entries = [{"kind": "target", "key": [a.sharing.names.targets[0]], "at": 1e9}]
                whole["dump"]["entries"] = entries
                data = zlib.compress(json.dumps(whole).encode())
            for each in (key, *more):
                raw.set(each, data)
            raw.close()
        late = await Worker(redis_server.url).joins()
        try:
            assert late.figures.rounds_seen.weight == pytest.approx(
                a.figures.rounds_seen.weight, rel=0.01
            )
        finally:
            await late.aclose()


async def test_something_else_under_its_keys_leaves_a_worker_alone(
    redis_server: RedisServer,
) -> None:
    """A server that refuses is one that can't be had."""
    alone = Worker(redis_server.url)
    with redis_server.client() as client:
        client.set(f"{server.PREFIX}{{{alone.sharing.names.id}}}:notes", "text")
    await alone.sharing.met()
    assert alone.sharing.state is State.AWAY
    await alone.aclose()


async def test_too_much_is_thinned_by_chance(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a message can't hold and of what there is no time to enter: rates stay, weights
    don't."""
    async with workers(redis_server) as (a, b):
        for i in range(400):
            a.answer(accepted=2 if i % 2 else 4)
        monkeypatch.setattr(worker, "BUSY_S", 100 * worker.EACH_S)
        await a.visits()
        await b.visits()
        assert a.sharing.counts["told_bytes"] < 20_000
        assert b.sharing.counts["left_out"] > 0
        assert b.sharing.counts["entered"] <= 150
        assert b.figures.rounds_seen.rate == pytest.approx(a.figures.rounds_seen.rate, abs=0.1)


async def test_a_turn_that_is_over_writes_nothing(redis_server: RedisServer) -> None:
    """A worker that stood still meanwhile has old figures."""
    one, two = (Server(redis_server.url, "id", "h", name) for name in "ab")
    try:
        tell = server.fields("a", "h", 1, b"{}")
        assert (await one.visit("0", tell)).turn
        assert not (await two.visit("0", tell)).turn
        assert await one.write(b"1")
        with redis_server.client() as client:
            client.delete(*client.keys("*:turn:*"))
        assert (await two.visit("0", tell)).turn
        assert not await one.write(b"1 again")
        assert await two.write(b"2")
        assert (await one.start()).figures == [b"2", b"2"]
    finally:
        await one.aclose()
        await two.aclose()

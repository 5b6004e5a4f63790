"""Real clients at one real Redis, each with a router and measurements of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from specroute.sharing import Sharing, worker
from specroute.sharing.worker import State
from specroute.speculation.speculator import Speculator
from specroute.types import Report
from tests.engine.world import World, speculating
from tests.support.redis_server import RedisServer

WORLD = World()
POLICY = {"preset": "latency"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers visit often, so that tests are short."""
    monkeypatch.setattr(worker, "PERIOD_S", 0.02)


@pytest.fixture(scope="module")
def target() -> Iterator[ReferenceServer]:
    with ReferenceServer(WORLD.script, pace="tpot=20ms") as server:
        yield server


@pytest.fixture(scope="module")
def quicker() -> Iterator[ReferenceServer]:
    """A target that no draft helps."""
    with ReferenceServer(WORLD.script, pace="tpot=8ms") as server:
        yield server


@asynccontextmanager
async def client(
    target: ReferenceServer, redis_server: RedisServer | None, kind: str = "good"
) -> AsyncIterator[AsyncSpecRoute]:
    """One worker, warmed up, whose draft is good or bad; without a Redis it is alone."""
    store = None if redis_server is None else {"kind": "redis", "url": redis_server.url}
    drafter = WORLD.drafter(kind)
    async with speculating(WORLD, target, policy=POLICY, drafter=drafter, store=store) as made:
        await made.warm_up()
        yield made


def sharing(client: AsyncSpecRoute) -> Sharing:
    found = client.router.speculation
    assert isinstance(found, Speculator) and found.sharing is not None
    return found.sharing


async def ask(client: AsyncSpecRoute) -> Report:
    stream = await client.completions.create(
        model="m", prompt="a b a", max_tokens=30, stream=True, temperature=0
    )
    async for _chunk in stream:
        pass
    return report(stream)


def tried(told: Report) -> bool:
    """Whether a plan that wasn't expected to win was tried."""
    return " is tried: " in told.plan_reason


async def settled(client: AsyncSpecRoute) -> None:
    """Until nothing of it waits to be told."""
    async with asyncio.timeout(10):
        while sharing(client)._waiting or sharing(client)._unsure:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_second_worker_speculates_from_its_first_request(
    target: ReferenceServer, redis_server: RedisServer
) -> None:
    """By what the first one has found out in several; alone it has to find out as well."""

    def sure(told: Report) -> bool:
        return told.rounds > 0 and "is predicted to take" in told.plan_reason

    async def learnt(client: AsyncSpecRoute) -> int:
        """Requests until four in a row are sure to win."""
        told = [await ask(client) for _ in range(4)]
        while not all(map(sure, told[-4:])):
            assert len(told) < 60
            told.append(await ask(client))
        return len(told) - 4

    async with client(target, redis_server) as a:
        assert await learnt(a) > 0
        await settled(a)
        async with client(target, redis_server) as b:
            assert await learnt(b) == 0
    async with client(target, None) as alone:
        assert await learnt(alone) > 0


async def test_requests_go_on_without_a_server(
    target: ReferenceServer, own_server: RedisServer
) -> None:
    """One that was never there: plans are made by what is measured here."""
    own_server.stop()
    async with client(target, own_server) as a:
        assert sharing(a).state is State.AWAY
        async with asyncio.timeout(30):
            while not (done := await ask(a)).rounds:
                assert done.complete


async def test_of_all_workers_one_at_a_time_explores(
    quicker: ReferenceServer, redis_server: RedisServer
) -> None:
    """Whoever has the leave; and what any of them has spent stands in the accounts of all."""
    found: list[tuple[float, float, Report]] = []
    async with AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(client(quicker, redis_server, "bad")) for _ in range(4)
        ]

        async def work(each: AsyncSpecRoute) -> None:
            for _ in range(25):
                began = time.perf_counter()
                done = await ask(each)
                found.append((began, time.perf_counter(), done))

        await asyncio.gather(*map(work, crowd))
        tries = sorted((began, ended) for began, ended, each in found if tried(each))
        for (_, ended), (began, _) in itertools.pairwise(tries):
            assert ended <= began
        await asyncio.gather(*map(settled, crowd))

        def spent() -> list[float]:
            return [sum(a.spent for _, a in sharing(each).accounts.dump()) for each in crowd]

        async with asyncio.timeout(10):
            while max(spent()) - min(spent()) > 1e-6 * max(spent()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        each_alone = sum(done.total_s or 0.0 for _, _, done in found) / len(crowd)
        assert max(spent()) > 3 * each_alone
        assert [sharing(each).counts["skipped"] for each in crowd] == [0] * 4

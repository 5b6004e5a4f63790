"""Real clients at one real Redis, each with a router and measurements of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from specroute.sharing import Sharing, worker
from specroute.sharing.accounts import HELD
from specroute.sharing.worker import State
from specroute.speculation.speculator import Speculator
from specroute.types import Report
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.alone

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
    target: ReferenceServer, redis_server: RedisServer | None, kind: str = "good", **provider: Any
) -> AsyncIterator[AsyncSpecRoute]:
    """One worker, warmed up, whose draft is good or bad; without a Redis it is alone."""
    store = None if redis_server is None else {"kind": "redis", "url": redis_server.url}
    drafter = WORLD.drafter(kind)
    async with speculating(
        WORLD, target, policy=POLICY, drafter=drafter, store=store, provider=provider
    ) as made:
        await made.warm_up()
        yield made


def sharing(client: AsyncSpecRoute) -> Sharing:
    found = client.router.speculation
    assert isinstance(found, Speculator) and found.sharing is not None
    return found.sharing


async def ask(client: AsyncSpecRoute) -> Report:
    stream = await client.completions.create(
        model="m", prompt="a b a", max_tokens=14, stream=True, temperature=0
    )
    async for _chunk in stream:
        pass
    return report(stream)


def tried(told: Report) -> bool:
    """Whether a plan that wasn't expected to win was tried."""
    return " is tried: " in told.plan_reason


def sure(told: Report) -> bool:
    """Whether it was speculated on in the hope to win, and not to find out."""
    return told.rounds > 0 and not tried(told)


def given_up(told: Report) -> bool:
    """Whether it went plain since speculation is predicted to lose, or has just lost."""
    why = told.plan_reason
    return told.rounds == 0 and ("times the plain pace" in why or "has lately lost" in why)


async def asked_until(client: AsyncSpecRoute, done: Callable[[Report], bool]) -> list[Report]:
    """The reports up to that one."""
    told = [await ask(client)]
    while not done(told[-1]):
        assert len(told) < 60, told[-1].plan_reason
        told.append(await ask(client))
    return told


async def heard(client: AsyncSpecRoute, other: AsyncSpecRoute) -> None:
    """Until it has heard what the other one has told."""
    async with asyncio.timeout(10):
        while sharing(client)._heard.get(sharing(other)._server.worker, 0) < (  # noqa: ASYNC110
            sharing(other)._number
        ):
            await asyncio.sleep(0.01)


async def settled(client: AsyncSpecRoute) -> None:
    """Until nothing of it waits to be told."""
    async with asyncio.timeout(10):
        while sharing(client)._waiting or sharing(client)._unsure:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_second_worker_speculates_from_its_first_request(
    target: ReferenceServer, redis_server: RedisServer
) -> None:
    """By what the first one has found out in several; alone it has to find out as well."""

    async def learnt(client: AsyncSpecRoute) -> int:
        """Requests until four in a row are sure to win."""
        told = [await ask(client) for _ in range(4)]
        while not all(map(sure, told[-4:])):
            assert len(told) < 60
            told.append(await ask(client))
        return len(told) - 4

    async with client(target, redis_server) as a, client(target, None) as alone:
        assert min(await asyncio.gather(learnt(a), learnt(alone))) > 0
        await settled(a)
        async with client(target, redis_server) as b:
            assert await learnt(b) == 0


async def test_a_worker_stops_by_what_another_has_paid_for(
    target: ReferenceServer, redis_server: RedisServer
) -> None:
    """R rises at the server: one loses by it, the other's next request is plain already."""
    slower = [0.0]

    def judge(path: str, body: Mapping[str, Any], _: int) -> Fault | None:
        return Fault("late", value=slower[0]) if body.get("echo") else None

    async with (
        Proxy(target.base_url.removesuffix("/v1"), judge) as relay,
        client(target, redis_server, base_url=relay.base_url) as a,
        client(target, redis_server, base_url=relay.base_url) as b,
    ):
        await asked_until(a, sure)
        await settled(a)
        await heard(b, a)
        assert sure(await ask(b))
        await settled(b)
        slower[0] = 0.6
        losing = await asked_until(a, given_up)
        assert losing[0].rounds > 0
        await settled(a)
        await heard(b, a)
        told = await ask(b)
        assert given_up(told), told.plan_reason


async def test_a_report_says_that_the_leave_to_explore_is_missing(
    target: ReferenceServer, redis_server: RedisServer
) -> None:
    """Since another worker has it, who tries for all."""
    async with client(target, redis_server) as a, client(target, redis_server) as b:
        async with asyncio.timeout(20):
            assert "no loss may be risked yet" in (await ask(a)).plan_reason
            while HELD not in (await ask(b)).plan_reason:
                pass


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
            for _ in range(16):
                began = time.perf_counter()
                done = await ask(each)
                found.append((began, time.perf_counter(), done))

        await asyncio.gather(*map(work, crowd))
        tries = sorted((began, ended) for began, ended, each in found if tried(each))
        assert tries
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

"""Sums at a Redis server: shared, and kept while it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from specroute.config import ProviderConfig, parse
from specroute.errors import ConfigError, LimitReached, StoreFailed
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.gate import Departure
from specroute.limits.gate import LimitGate
from specroute.store.redis import AWAY_S, PREFIX, RedisStore
from specroute.store.window import DAY, MINUTE, Change, Want
from tests.support.redis_server import RedisServer

NOW = 1e9


def usd(amount: float, limit: float = 10.0) -> Want:
    return Want("usd", amount, limit, DAY)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """One that a test may stop."""
    with RedisServer() as server:
        yield server


async def test_two_workers_are_one(redis_server: RedisServer) -> None:
    """What one takes, the other has not; what one gives back, the other may take."""
    redis_server.flush()
    a, b = RedisStore(redis_server.url), RedisStore(redis_server.url)
    assert await a.take([usd(6)], NOW) is None
    refused = await b.take([usd(6)], NOW)
    assert refused is not None and (refused.used, refused.wait_s > 0) == (6.0, True)
    a.change([Change("usd", DAY.slot(NOW), -4.0)])
    assert await a.take([usd(0)], NOW) is None  # behind the change
    assert await b.take([usd(6)], NOW) is None
    await a.aclose()
    await b.aclose()


async def test_what_is_booked_is_forgotten_in_time(redis_server: RedisServer) -> None:
    """No key lives much longer than its window."""
    redis_server.flush()
    store = RedisStore(redis_server.url)
    assert await store.take([Want("rpm", 1, 9, MINUTE), usd(1)], NOW) is None
    with redis_server.client() as client:
        assert 0 < client.ttl(PREFIX + "rpm") <= 122
        assert 0 < client.ttl(PREFIX + "usd") <= 2 * 86_400
    await store.aclose()


async def test_while_it_is_away_each_goes_on_alone_and_then_pays(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """From the last sums seen; what was taken meanwhile is booked when it is back. Said once."""
    clock = [0.0]
    a, b = (RedisStore(own_server.url, lambda: clock[0]) for _ in range(2))
    assert await a.take([usd(4)], NOW) is None
    own_server.stop()
    with caplog.at_level(logging.WARNING, "specroute"):
        assert await a.take([usd(4)], NOW) is None  # 4 are known to be gone, 4 more fit
        assert await a.take([usd(4)], NOW) is not None
        a.change([Change("usd", DAY.slot(NOW), -1.0)])
        assert await b.take([usd(3)], NOW) is None  # b has seen nothing: it is alone
    assert [r.message for r in caplog.records if "is away" in r.message] != []
    assert len([r for r in caplog.records if "is away" in r.message]) == 2
    own_server.start()
    clock[0] += AWAY_S
    assert await a.take([usd(0)], NOW) is None
    assert await b.take([usd(0)], NOW) is None
    # The server lost its memory: 3 that a owed and 3 that b owed.
    assert own_server.booked(PREFIX + "usd", DAY.slot(NOW)) == 6.0
    assert await b.take([usd(5)], NOW) is not None
    assert (a.away, b.away) == (False, False)
    await a.aclose()
    await b.aclose()


async def test_a_server_that_hung_books_nothing_twice(own_server: RedisServer) -> None:
    """It does what it was sent when it goes on, though nobody waits for that any more."""
    clock = [0.0]
    store = RedisStore(own_server.url, lambda: clock[0])
    assert await store.take([usd(4)], NOW) is None
    booked = []
    for hurried in (Change("usd", DAY.slot(NOW), 3.0), Change("usd", DAY.slot(NOW), -2.0)):
        own_server.pause()
        if hurried.amount > 0:
            assert await store.take([usd(hurried.amount)], NOW) is None
        else:
            store.change([hurried])
            assert await store.take([usd(0)], NOW) is None  # behind the change
        assert store.away
        own_server.resume()
        clock[0] += AWAY_S
        assert await store.take([usd(0)], NOW) is None
        booked.append(own_server.booked(PREFIX + "usd", DAY.slot(NOW)))
    assert booked == [7.0, 5.0]
    await store.aclose()


async def test_an_away_server_is_not_asked_for_every_request(own_server: RedisServer) -> None:
    """Only after a while, so that nobody waits for it again and again."""
    clock = [0.0]
    store = RedisStore(own_server.url, lambda: clock[0])
    own_server.stop()
    assert await store.take([usd(1)], NOW) is None
    own_server.start()
    assert await store.take([usd(1)], NOW) is None
    assert store.away
    assert own_server.booked(PREFIX + "usd", DAY.slot(NOW)) == 0.0
    clock[0] += AWAY_S
    assert await store.take([usd(1)], NOW) is None
    assert own_server.booked(PREFIX + "usd", DAY.slot(NOW)) == 3.0
    await store.aclose()


@pytest.mark.parametrize(
    ("falls_ill", "recovers"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
    ],
    ids=["full", "only a replica", "without its replicas"],
)  # fmt: skip
async def test_a_server_that_cant_book_is_away(
    own_server: RedisServer, falls_ill: tuple[str, ...], recovers: tuple[str, ...]
) -> None:
    """Each goes on alone, as without it, and pays when it books again."""
    clock = [0.0]
    store = RedisStore(own_server.url, lambda: clock[0])
    assert await store.take([usd(6)], NOW) is None
    with own_server.client() as operator:
        operator.execute_command(*falls_ill)
        assert await store.take([usd(3)], NOW) is None
        assert await store.take([usd(3)], NOW) is not None  # 9 of 10 are known to be gone
        assert store.away
        operator.execute_command(*recovers)
    clock[0] += AWAY_S
    assert await store.take([usd(1)], NOW) is None
    assert not store.away
    assert own_server.booked(PREFIX + "usd", DAY.slot(NOW)) == 10.0
    await store.aclose()


async def test_a_long_absence_keeps_no_more_than_a_window(own_server: RedisServer) -> None:
    """What has left every window is neither kept nor booked afterwards."""
    clock = [0.0]
    store = RedisStore(own_server.url, lambda: clock[0])
    own_server.stop()
    for second in range(500):
        assert await store.take([Want("rpm", 1, 100, MINUTE)], NOW + second) is None
    own_server.start()
    clock[0] += AWAY_S
    assert await store.take([Want("rpm", 1, 100, MINUTE)], NOW + 500) is None
    with own_server.client() as client:
        assert client.hlen(PREFIX + "rpm") <= MINUTE.slots + 1
    await store.aclose()


@pytest.mark.parametrize("skew", [-300.0, 300.0])
async def test_machines_whose_clocks_differ_count_the_same_minute(
    redis_server: RedisServer, skew: float
) -> None:
    """A clock five minutes off neither hides calls from the others nor drops theirs."""
    redis_server.flush()
    stores, gates = [], []
    for off in (0.0, skew):

        def wall(off: float = off) -> float:
            return time.time() + off

        stores.append(RedisStore(redis_server.url, wall=wall))
        gates.append(LimitGate(stores[-1], lambda target: None, clock=wall))
    for i in range(10):
        await gates[i % 2].enter(call())
    for gate in gates:
        with pytest.raises(LimitReached, match="no room for one more"):
            await gate.enter(call())
    assert abs(await stores[1].ahead() + skew) < 1
    for store in stores:
        await store.aclose()


def call() -> Departure:
    """To a provider that takes ten a minute, and which doesn't wait."""
    lab = ProviderConfig("lab", "generic", "http://h/v1", limits={"rpm": 10})
    hurried = replace(UNLIMITED, first_token=0.5)
    return Departure(lab, "m", "plain", b"{}", Deadline(hurried))


async def test_a_server_that_refuses_is_an_error(redis_server: RedisServer) -> None:
    """Not away: something else is under the key."""
    redis_server.flush()
    with redis_server.client() as client:
        client.set(PREFIX + "usd", "text")
    store = RedisStore(redis_server.url)
    with pytest.raises(StoreFailed, match="WRONGTYPE"):
        await store.take([usd(1)], NOW)
    await store.aclose()


async def test_the_callers_of_two_workers_keep_a_budget(redis_server: RedisServer) -> None:
    """Reserved 0.03, billed 0.02: never over the limit, and all of it is used."""
    redis_server.flush()
    stores = [RedisStore(redis_server.url) for _ in range(2)]
    spent: list[float] = []

    async def call(store: RedisStore) -> None:
        if await store.take([usd(0.03, 5.0)], NOW) is None:
            spent.append(0.02)
            store.change([Change("usd", DAY.slot(NOW), -0.01)])

    for _ in range(20):
        await asyncio.gather(*(call(stores[i % 2]) for i in range(25)))
    for store in stores:
        await store.aclose()
    assert 5.0 - 0.03 < sum(spent) <= 5.0


def test_the_config_names_a_server_without_its_password() -> None:
    """A URL with one has to be in a variable, and is not shown."""
    config = parse(
        {"version": 1, "store": {"kind": "redis", "url": "redis://10.0.0.7:6379/0"}}, "t"
    )
    assert config.store.url == "redis://10.0.0.7:6379/0"
    secret = "redis://:canary-redis-9@10.0.0.7:6379/0"
    named = {"version": 1, "store": {"kind": "redis", "env_url": "REDIS_URL"}}
    config = parse(named, "t", {"REDIS_URL": secret})
    assert config.store.url == secret
    assert "canary" not in repr(config) + repr(RedisStore(secret))
    for store, said in (
        ({"kind": "redis", "url": secret}, "env_url"),
        ({"kind": "redis"}, "needs url"),
        ({"kind": "redis", "env_url": "REDIS_URL"}, "REDIS_URL is not set"),
        ({"kind": "redis", "url": "http://x"}, "a URL like"),
        ({"kind": "redis", "url": "http://:canary@x"}, "env_url"),
        ({"kind": "redis", "url": "redis://x/0?password=canary"}, "env_url"),
        ({"kind": "redis", "url": "redis://x/main"}, "a URL like"),
        ({"kind": "redis", "env_url": "NO_SCHEME"}, "NO_SCHEME should hold a URL like"),
        ({"kind": "redis", "env_url": "NO_PORT"}, "NO_PORT should hold a URL like"),
        ({"kind": "memory", "url": "redis://x"}, "only for kind = 'redis'"),
    ):
        wrong = {"NO_SCHEME": "10.0.0.7:6379 canary", "NO_PORT": "redis://:canary@x:main/0"}
        with pytest.raises(ConfigError, match=said) as caught:
            parse({"version": 1, "store": store}, "t", wrong)
        assert "canary" not in str(caught.value)

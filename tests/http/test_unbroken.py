"""A cancellation while an answer is closed costs the pool no place, whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx2
import pytest

from specroute.config import ProviderConfig, Timeouts
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import Deadline
from specroute.http.unbroken import ended, unbroken
from tests.support.loopback import Exchange, Loopback

TURNS = 40
"""More turns of the loop than an answer takes from its last byte to its end."""


class Upstream:
    """A client of two connections, and what its pool holds."""

    def __init__(self, url: str) -> None:
        transport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=2))
        self.pool = transport._pool
        self._own = httpx2.AsyncClient(transport=transport)
        self.http = HttpClient(ProviderConfig("lab", "generic", url), client=self._own)

    @property
    def held(self) -> int:
        """Places of the pool that are in use."""
        busy = [each for each in self.pool.connections if not each.is_idle()]
        return max(len(self.pool._requests), len(busy))

    async def aclose(self) -> None:
        await self.http.aclose()
        await self._own.aclose()


async def read_all(http: HttpClient) -> None:
    reply = await http.send(Call("GET", "/models"), Deadline(Timeouts()))
    await reply.read()


async def leave(http: HttpClient) -> None:
    reply = await http.send(Call("GET", "/models"), Deadline(Timeouts()))
    await reply.chunk()
    await reply.aclose()


async def leave_unread(http: HttpClient) -> None:
    reply = await http.send(Call("GET", "/models"), Deadline(Timeouts()))
    await reply.aclose()


@pytest.mark.parametrize("ask", [read_all, leave, leave_unread])
async def test_a_place_in_the_pool_comes_back(
    ask: Callable[[HttpClient], Awaitable[None]],
) -> None:
    """The reader is cancelled after 0, 1, 2 … turns of the loop from when the answer is there."""
    there = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(b"some")
        if ask is read_all:
            await exchange.finish()
        there.set()
        if ask is not read_all:
            await exchange.gone.wait()

    cancelled = 0
    async with Loopback(handle) as server:
        upstream = Upstream(server.url)
        for turns in range(TURNS):
            there.clear()
            task = asyncio.ensure_future(ask(upstream.http))
            await there.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            cancelled += task.cancelled()
            assert upstream.held == 0, turns
        await upstream.aclose()
    assert 0 < cancelled < TURNS  # Both before the end and after it.


class Waits:
    """Work of a few turns, which may wait for something between them."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.done = False

    async def run(self, *, waits: bool = False, fails: bool = False) -> None:
        await asyncio.sleep(0)
        if waits:
            await self.event.wait()
        await asyncio.sleep(0)
        self.done = True
        if fails:
            raise ValueError("it went wrong")


async def test_a_cancellation_waits_for_the_end() -> None:
    """It is raised after the work, also in place of what the work raises."""
    for fails in (False, True):
        work = Waits()
        task = asyncio.ensure_future(unbroken(work.run(fails=fails)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.done


async def test_what_waits_is_reached() -> None:
    """A cancellation doesn't hang on work that waits for what may never come."""
    work = Waits()
    task = asyncio.ensure_future(unbroken(work.run(waits=True)))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.done


async def test_an_error_passes() -> None:
    """Without a cancellation the work's own error is raised."""
    with pytest.raises(ValueError, match="it went wrong"):
        await unbroken(Waits().run(fails=True))


async def test_who_waits_for_an_end_sees_it() -> None:
    """Cancelled as often as you like: it goes on when all are over, and is cancelled then."""

    async def tidies_up(turns: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(turns):
                await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(tidies_up(turns)) for turns in (1, 5)]
    await asyncio.sleep(0)
    for each in tasks:
        each.cancel()
    waiter = asyncio.ensure_future(ended(*tasks))
    for _ in range(3):
        await asyncio.sleep(0)
        waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert all(each.cancelled() for each in tasks)
    await ended(*tasks)

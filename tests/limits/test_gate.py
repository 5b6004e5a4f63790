"""Who waits at a limit, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specroute.config import ProviderConfig
from specroute.config.values import Timeouts
from specroute.errors import LimitReached
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.gate import Departure
from specroute.limits.gate import LimitGate
from specroute.store import MemoryStore
from specroute.store.window import Refusal, Want

LAB = ProviderConfig("lab", "generic", "http://h/v1", limits={"rpm": 10})


class SlowStore(MemoryStore):
    """A store whose answer takes a turn of the loop or more, as a file's does."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        await self.go.wait()
        return await super().take(wants, now)


def departure(purpose: str, timeouts: Timeouts = UNLIMITED) -> Departure:
    return Departure(LAB, "m", purpose, b"{}", Deadline(timeouts))


async def test_a_slow_store_is_no_full_limit() -> None:
    """A call that may be left out is not turned away because another one is just being booked."""
    store = SlowStore()
    gate = LimitGate(store, lambda target: None)
    needed = asyncio.create_task(gate.enter(departure("plain")))
    await asyncio.sleep(0)
    optional = asyncio.create_task(gate.enter(departure("score")))
    await asyncio.sleep(0)
    store.go.set()
    assert await needed and await optional


async def test_who_waits_and_who_does_not() -> None:
    """Nine of ten for calls that may be left out; the last for a needed one; then those wait, and
    while they do, nobody overtakes."""
    now = [1000.0]
    gate = LimitGate(MemoryStore(), lambda target: None, clock=lambda: now[0])
    for _ in range(9):
        await gate.enter(departure("score"))
    with pytest.raises(LimitReached, match="10, 9 of it for calls that can be left out: 9 calls"):
        await gate.enter(departure("score"))
    await gate.enter(departure("plain"))
    hurried = replace(UNLIMITED, first_token=30.0)
    with pytest.raises(LimitReached, match=r"no room for one more; there is room in 61\.0 s"):
        await gate.enter(departure("plain", hurried))
    waiting: Any = asyncio.create_task(gate.enter(departure("plain")))
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="other calls wait for room"):
        await gate.enter(departure("score"))
    now[0] += 61
    async with asyncio.timeout(5):
        await waiting
    await gate.enter(departure("score"))


async def test_a_refused_call_that_leaves_makes_room_for_nobody_to_wait_on() -> None:
    """After a caller gave up, a later one finds what is free by then."""
    now = [1000.0]
    gate = LimitGate(MemoryStore(), lambda target: None, clock=lambda: now[0])
    for _ in range(10):
        await gate.enter(departure("plain"))
    with pytest.raises(LimitReached):
        await gate.enter(departure("plain", replace(UNLIMITED, first_token=1.0)))
    now[0] += 61
    await gate.enter(departure("score"))

"""A reader who leaves, with speculation running: every lane, round and draft is over at once."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from tests.engine.test_exits import until
from tests.faults.cells import GRACE_S, MESSAGES, SETUPS, World, world

PACE = "ttft=30ms,tpot=10ms"
WAYS = ["close", "cancel", "drop"]


async def leave(made: World, how: str, after: int) -> float:
    """Read so many pieces of a stream and leave; seconds until nothing is under way."""
    loop = asyncio.get_running_loop()
    reading = asyncio.Event()
    held: list[Any] = []

    async def reader() -> None:
        stream = await made.client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, temperature=0
        )
        held.append(stream)
        for _ in range(after):
            await anext(stream)
        reading.set()
        if how == "cancel":
            async for _ in stream:
                pass

    task = asyncio.ensure_future(reader())
    await reading.wait()
    if how == "close":
        await task
        started = loop.time()
        await held.pop().close()
    elif how == "cancel":
        started = loop.time()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    else:
        await task
        del task
        held.clear()
        gc.collect()
        started = loop.time()
    await made.servers[0].idle(5)
    return loop.time() - started


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("setup", SETUPS)
async def test_a_reader_leaves(setup: str, how: str) -> None:
    """By closing, by cancellation, by dropping the stream: within a tenth of a second nothing of
    it is under way at the server, and the report books every request that was made."""
    best = 9.0
    for _ in range(3):
        async with world(SETUPS[setup], pace=PACE) as made:
            best = min(best, await leave(made, how, 3))
            await until(lambda: made.reports)
            seen = [r for r in made.servers[0].requests if not r.path.endswith("tokenize")]
            attempts = [a for r in made.reports for a in r.attempts if a.purpose != "render"]
            assert len(attempts) >= len(seen)  # A lane may have been left on its way there.
            assert not any(r.complete for r in made.reports if r.error)
            assert made.drafter.open_sessions == 0
        if best < GRACE_S:
            break
    assert best < GRACE_S


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("setup", ["plain", "score/echo", "score/fanout", "prefix", "predict"])
async def test_a_task_is_cancelled_before_its_answer(setup: str, calls: int) -> None:
    """While the target is being calibrated, scored or waited for: what was used is on the bill."""
    async with world(SETUPS[setup], pace="ttft=30ms") as made:
        (server,) = made.servers
        create: Any = made.client.chat.completions.create
        task = asyncio.ensure_future(create(model="m", messages=MESSAGES, temperature=0))
        # The very turn in which the call is there: a later one may have left without being there.
        arrived = asyncio.ensure_future(server.arrived(calls))
        await asyncio.wait([task, arrived], return_when=asyncio.FIRST_COMPLETED)
        done = task.done()
        arrived.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await server.idle(1)
        (report,) = made.reports
        assert len(report.attempts) == len(server.requests)
        assert report.complete == done
        assert done or report.error
        assert report.billed_prompt_tokens is not None or not done

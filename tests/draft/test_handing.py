"""What ends together in a thread is told to a loop together."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from specroute.draft.handing import Handing


async def test_what_ended_before_a_flush_is_known_in_one_turn() -> None:
    """Results, errors and all; nothing before."""
    handing = Handing()
    futures: list[Future[int]] = [Future() for _ in range(3)]
    mine = [handing.awaited(future) for future in futures]
    futures[0].set_result(1)
    futures[2].set_exception(ValueError("three"))
    await asyncio.sleep(0)
    assert not any(each.done() for each in mine)
    handing.flush()
    await asyncio.sleep(0)
    assert [each.done() for each in mine] == [True, False, True]
    assert mine[0].result() == 1
    with pytest.raises(ValueError, match="three"):
        mine[2].result()
    futures[1].set_result(2)
    handing.flush()
    assert await mine[1] == 2


async def test_one_that_had_ended_before_it_was_awaited_is_not_forgotten() -> None:
    """Nobody may come to flush any more."""
    done: Future[int] = Future()
    done.set_result(7)
    assert await Handing().awaited(done) == 7


async def test_a_caller_who_has_left_is_told_nothing() -> None:
    """The others are."""
    handing = Handing()
    futures: list[Future[int]] = [Future(), Future()]
    mine = [handing.awaited(future) for future in futures]
    mine[0].cancel()
    for n, future in enumerate(futures):
        future.set_result(n)
    handing.flush()
    assert await mine[1] == 1
    assert mine[0].cancelled()


def test_every_loop_is_told_of_its_own_and_a_closed_one_of_nothing() -> None:
    """Loops in several threads, one of which is gone by then."""
    handing = Handing()
    futures: list[Future[int]] = [Future() for _ in range(3)]

    async def wait(n: int) -> int:
        return await handing.awaited(futures[n])

    async def leave() -> None:
        handing.awaited(futures[2])

    asyncio.run(leave())
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(asyncio.run, wait(n)) for n in range(2)]
        while sum(len(f._done_callbacks) for f in futures) < 3:
            pass
        for n, future in enumerate(futures):
            future.set_result(n)
        handing.flush()
        assert [each.result() for each in found] == [0, 1]

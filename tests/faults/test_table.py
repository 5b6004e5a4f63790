"""Every fault × every method × (stream, not stream): a right answer or one typed error, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from specroute.testing import faults
from tests.faults.cells import SETUPS, Cell, Outcome

AT_ONCE = 6
"""Cells that run beside each other: they mostly wait."""


FULL = ("plain", "score/echo", "prefix", "predict")
CALLS = {"plain": 1, "predict": 2, "balanced": 2, "judge": 3, "race": 3, "hedge": 2}
"""At which of a request's calls the faults come; they move from call to call."""


def cells(setup: str, stream: bool, *, spare: bool) -> list[Cell]:
    """One for each fault: once with one target, from then on with a healthy one behind it. Where
    it is not ``FULL``, half of them are streamed and the others whole."""
    calls = CALLS.get(setup, 6)
    chosen = faults.EVERY if setup in FULL and not spare else faults.EVERY[stream::2]
    return [
        Cell(setup, stream, fault, nth=1 + i % calls, once=not spare, spare=spare)
        for i, fault in enumerate(chosen)
    ]


async def complaints(judged: Iterable[Cell], ok: Callable[[Cell, Outcome], bool]) -> list[str]:
    """What is wrong with the outcomes. A cell that waits for its deadline is judged by the best
    of three, the last ones by themselves: the machine may be late, too."""
    turn = asyncio.Semaphore(AT_ONCE)

    def wrong(cell: Cell, out: Outcome) -> list[str]:
        found = [f"{cell}: {said}" for said in out.broken]
        if not ok(cell, out):
            tried = [(a.purpose, a.outcome) for a in out.report.attempts]
            found.append(f"{cell}: {out} after {tried}")
        return found

    async def one(cell: Cell) -> list[str]:
        async with turn:
            return wrong(cell, await cell.run())

    judged = list(judged)
    found = await asyncio.gather(*map(one, judged))
    for i, cell in enumerate(judged):
        for _ in range(2):
            if found[i] and (cell.waits or any("under way" in said for said in found[i])):
                found[i] = wrong(cell, await cell.run())
    return [said for each in found for said in each]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("setup", SETUPS)
async def test_a_fault_that_comes_once(setup: str, stream: bool) -> None:
    """What is complete is right, what isn't is a typed error after a beginning of the answer, the
    report tells of it, nothing goes on afterwards; and where speculation met the fault, the same
    target's plain answer takes its place."""
    assert (
        await complaints(
            cells(setup, stream, spare=False), lambda cell, out: out.right or out.failed_plain
        )
        == []
    )


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("setup", SETUPS)
async def test_a_target_that_fails_for_good(setup: str, stream: bool) -> None:
    """With a healthy one behind it the answer is right, also one that had begun before."""
    assert (
        await complaints(
            cells(setup, stream, spare=True),
            lambda cell, out: out.right or drips(cell),
        )
        == []
    )


def drips(cell: Cell) -> bool:
    """An answer that comes whole and never stops coming: only ``total`` ends it."""
    return not cell.stream and "keep_alives" in repr(cell.fault)

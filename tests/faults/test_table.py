"""Every fault × every method × (stream, not stream): a right answer or one typed error, in time."""

from __future__ import annotations

import asyncio

import pytest

from specroute.testing import faults
from tests.faults.cells import SETUPS, Cell, Outcome

AT_ONCE = 8
"""Cells that run beside each other: they mostly wait."""


async def run(cells: list[Cell]) -> list[tuple[Cell, Outcome]]:
    """Each cell once; one that came too late once more by itself, when nothing else is running."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(cell: Cell) -> Outcome:
        async with turn:
            return await cell.run()

    outcomes = await asyncio.gather(*map(one, cells))
    return [
        (cell, await cell.run() if any("late" in b or "after" in b for b in out.broken) else out)
        for cell, out in zip(cells, outcomes, strict=True)
    ]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("setup", SETUPS)
async def test_a_fault_that_comes_once(setup: str, stream: bool) -> None:
    """At a call that moves from fault to fault: what is complete is right, what isn't is a typed
    error after a beginning of the answer, the report tells of it, nothing goes on afterwards; and
    where speculation met the fault, the same target's plain answer takes its place."""
    calls = {"plain": 1, "predict": 2, "balanced": 2}.get(setup, 6)
    cells = [Cell(setup, stream, fault, nth=1 + i % calls) for i, fault in enumerate(faults.EVERY)]
    wrong = []
    for cell, out in await run(cells):
        wrong += [f"{cell}: {said}" for said in out.broken]
        if not (out.right or out.failed_plain):
            wrong.append(f"{cell}: {out} after {[str(a.outcome) for a in out.report.attempts]}")
    assert wrong == []

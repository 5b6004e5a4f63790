"""The short version of ten thousand requests with faults and readers who leave."""

from __future__ import annotations

import pytest

from tests.faults.cells import SETUPS
from tests.faults.runs import run


@pytest.mark.parametrize("setup", SETUPS)
async def test_random_faults_and_readers_who_leave(setup: str) -> None:
    """Nothing is cut short in silence, lost or repeated; no task, connection, thread or draft
    session is left."""
    tally = await run(setup, 40, seed=7)
    assert tally.right + tally.left + sum(tally.errors.values()) == 40
    assert (tally.broken, tally.leaks) == ([], [])
    assert tally.right

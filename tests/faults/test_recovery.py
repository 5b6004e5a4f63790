"""What a recovery costs: one more TTFT, and what had to be waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specroute.testing import On, faults
from tests.faults.cells import FALL_BACK, PATIENT, SETUPS, ask, world

TTFT_S = 0.2
PACE = "ttft=200ms"
TURN_S = 0.1
"""What connecting, failing and asking may take on a busy machine."""
STALL_S = 0.3

CASES: list[tuple[Any, float]] = [
    (faults.reset(), 0),
    (faults.status(500), 0),
    (faults.rate_limited(retry_after=30), 0),
    (faults.unauthorized(), 0),
    (faults.html(), 0),
    (faults.cut(0), TTFT_S),
    (faults.cut(5), TTFT_S),
    (faults.ends_early(5), TTFT_S),
    (faults.malformed_event(5), TTFT_S),
    (faults.error_event(5), TTFT_S),
    (faults.stall(5), TTFT_S + STALL_S),
]


@pytest.mark.parametrize(("fault", "spent"), CASES, ids=lambda v: repr(v) if callable(v) else "")
async def test_a_recovery_adds_one_ttft_and_the_wait(fault: Any, spent: float) -> None:
    """``spent``: until the fault shows itself; what comes after it is one plain start elsewhere."""

    async def once(*rules: Any) -> float:
        limits = {**PATIENT, "stall": STALL_S}
        async with world(
            SETUPS["plain"],
            *rules,
            spare=(),
            timeouts=limits,
            pace=PACE,
            fallback_on=FALL_BACK,
        ) as made:
            out = await ask(made, stream=True)
            assert out.right, str(out)
            return out.seconds

    best = 9.0
    for _ in range(8):
        healthy, recovered = await asyncio.gather(once(), once(On(fault, times=1)))
        best = min(best, recovered - healthy - spent)
        if best < TURN_S:
            break
    assert best < TURN_S

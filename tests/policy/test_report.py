"""The report tells what was expected of the plan and of plain, and what became of it."""

from __future__ import annotations

from typing import Any

from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from specroute.types import Report
from tests.support.copying import ask

WORDS = [f"{a}{b}" for a in "bdfgkl" for b in ("ane", "oli", "ure", "ick")]
TEXT = " ".join(WORDS)


async def test_predicted_and_realised_stand_side_by_side() -> None:
    """In seconds and dollars, of a speculated request and of a plain one."""
    script = Script({"name": "x", "answers": [{"when": "copy", "text": TEXT}]})
    with ReferenceServer(script, pace="tpot=8ms", names=["x"]) as server:
        config: dict[str, Any] = {
            "version": 1,
            "providers": {
                "lab": {
                    "profile": "reference",
                    "base_url": server.base_url,
                    "prices": {"input": 0.1, "output": 0.4},
                }
            },
            "models": {"m": {"targets": ["lab:x"], "drafts": ["ngram"], "policy": "latency"}},
        }
        async with AsyncSpecRoute(config=config) as client:
            told: list[Report] = []
            for _ in range(14):
                told.append(await ask(client, TEXT, 100))
    planned = [each for each in told if each.predicted_s is not None]
    used = [each for each in planned if each.method != "plain"]
    assert used
    for each in planned:
        assert each.plain_s is not None
        assert each.plain_usd is not None
        assert each.total_s is not None
        assert each.cost_usd is not None
        assert "predict" in each.plan_reason or "gave no text" in each.plan_reason
    best = min(used, key=lambda each: each.total_s or 9.0)
    assert (best.predicted_s or 9.0) < (best.plain_s or 0.0)
    assert best.plain_s is not None
    assert 0.1 < best.plain_s < 2.0  # 24 words at 8 ms

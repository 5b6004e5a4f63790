"""``hedge``: the slowest first tokens of a target that is now and then very late."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome
from specroute import AsyncSpecRoute
from specroute.target.hedging import quantile
from specroute.testing import FaultServer, Sometimes, faults

TITLE = "hedge: TTFT 40 ms, 3 of 100 requests 1.5 s late; share of hedges 5 %"
LATE_S, SHARE = 1.5, 0.03
REQUESTS, AT_ONCE = 60, 4
"""A round."""


async def run(rounds: int) -> Outcome:
    found = Outcome()
    seen: dict[str, list[Any]] = {"plain": [], "hedge": []}
    for method, runs in seen.items():
        runs += await _ask_all(method, REQUESTS * min(rounds, 5))
    for method, runs in seen.items():
        ttfts = sorted(run.ttft_s for run in runs)
        calls = sum(len(run.report.attempts) for run in runs)
        found.rows.append(
            {
                "method": method,
                "requests": str(len(runs)),
                "calls": str(calls),
                **{f"TTFT p{q}, ms": f"{1e3 * quantile(ttfts, q / 100):.0f}" for q in (50, 95, 99)},
                "slowest, ms": f"{1e3 * ttfts[-1]:.0f}",
                "$/1000": task.per_thousand(
                    statistics.mean(run.report.cost_usd or 0 for run in runs)
                ),
                "exactness": runs[0].report.exactness,
            }
        )
    tails = [quantile(sorted(r.ttft_s for r in runs), 0.99) for runs in seen.values()]
    found.held["p99 of the TTFT at most half of plain's"] = tails[1] <= tails[0] / 2
    hedges = sum(len(r.report.attempts) - 1 for r in seen["hedge"])
    found.held["at most 5 % of the requests hedged, and two"] = (
        hedges <= 0.05 * len(seen["hedge"]) + 2
    )
    found.held["all answers plain's"] = {r.text for runs in seen.values() for r in runs} == {
        "It is on its way."
    }
    return found


async def _ask_all(method: str, requests: int) -> list[Any]:
    late = Sometimes(SHARE, [faults.delayed(LATE_S)], seed=1)
    pace = "ttft=40ms,tpot=2ms"
    async with (
        FaultServer(late, answer="It is on its way.", pace=pace) as server,
        AsyncSpecRoute(config=_config(server.base_url, method)) as client,
    ):
        gate = asyncio.Semaphore(AT_ONCE)

        async def one() -> Any:
            async with gate:
                return await task.ask(client, "Where is it?")

        await asyncio.gather(*(one() for _ in range(40)))  # its TTFTs become known
        return await asyncio.gather(*(one() for _ in range(requests)))


def _config(base_url: str, method: str) -> dict[str, Any]:
    provider = {
        "profile": "generic",
        "base_url": base_url,
        "capabilities": {"stream_usage": True},
        "prices": task.PRICES,
    }
    policy = {"preset": "fixed", "method": method}
    return {
        "version": 1,
        "providers": {"api": provider},
        "models": {"m": {"targets": ["api:toy"], "policy": policy}},
    }

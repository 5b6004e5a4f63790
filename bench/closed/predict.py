"""``predict`` on the edit task, and on prose, where the policy has to find out that it loses."""

from __future__ import annotations

import statistics
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome, ratio
from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer

TITLE = (
    "predict: TTFT 300 ms, TPOT 22 ms; assumed: 16 tokens a TPOT while the answer follows, 8 slow "
    "ones after a mismatch"
)
POLICY: dict[str, Any] = {"preset": "balanced", "usd_per_second": 0.01, "max_cost_ratio": 0}
WARM = 6
"""Calls in which the policy measures plain, tries, and draws its conclusion."""


async def run(rounds: int) -> Outcome:
    found = Outcome()
    for name, script in (("edit", task.edit_script()), ("rewrite", task.prose_script())):
        prompt = task.ASK + task.FILE
        with ReferenceServer(
            script, pace=task.PACE, disable=list(task.CLOSED), process=True
        ) as server:
            made = task.config(server, POLICY, prediction=True)
            async with AsyncSpecRoute(config=made) as client:
                plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
                warm = [await task.ask(client, prompt) for _ in range(WARM)]
                pairs = []
                for _ in range(rounds):
                    pairs.append((await task.ask(plain, prompt), await task.ask(client, prompt)))
        gain = ratio([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs])
        identical = all(a.text == b.text for a, b in pairs)
        extra = statistics.median(
            (b.report.cost_usd or 0) - (a.report.cost_usd or 0) for a, b in pairs
        )
        methods = [b.report.method for _, b in pairs]
        shown = [b.report for _, b in pairs if b.report.drafted] or [
            b.report for b in warm if b.report.drafted
        ]
        found.rows.append(
            {
                "task": name,
                "plain s": f"{statistics.median(a.seconds for a, _ in pairs):.2f}",
                "policy s": f"{statistics.median(b.seconds for _, b in pairs):.2f}",
                "plain / policy (95 %)": str(gain),
                "first calls": ", ".join(b.report.method for b in warm),
                "then": ", ".join(sorted(set(methods))),
                "accepted / rejected": f"{shown[-1].accepted} / {shown[-1].rejected}"
                if shown
                else "–",
                "extra $/1000": task.per_thousand(extra),
            }
        )
        found.held[f"{name}: identical at T = 0"] = identical
        if name == "edit":
            found.held["edit: at least 2x"] = gain.value >= 2
        else:
            found.held["rewrite: the policy stops predicting"] = methods[-1] == "plain"
    return found

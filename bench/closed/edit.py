"""``prefix`` on an API with nothing but a prefill: the file with five changes, and prose."""

from __future__ import annotations

import statistics
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome, ratio
from specroute import AsyncSpecRoute

TITLE = "prefix: prefill only, TTFT 300 ms, TPOT 22 ms, n-gram draft"
PLAIN: dict[str, Any] = {"preset": "fixed", "method": "plain"}
POLICY: dict[str, Any] = {
    "preset": "fixed",
    "method": "prefix",
    "num_speculative_tokens": 8,
    "lanes": 8,
}
BALANCED: dict[str, Any] = {"preset": "balanced", "usd_per_second": 0.05, "max_cost_ratio": 0}
"""Who pays five cents for a second."""
WARM = 3
"""Calls in which that policy measures."""
TASKS = (
    ("edit", task.edit_script(), task.ASK + task.FILE),
    ("prose", task.prose_script(), "Write a text of three hundred words."),
)


async def run(rounds: int) -> Outcome:
    found = Outcome()
    for name, script, prompt in TASKS:
        runs: dict[str, list[task.Timed]] = {"plain": [], "8 lanes": [], "balanced": []}
        with task.closed_server(script, process=True) as server:
            capabilities = {"prefill": "continue_final_message", "prefill_repeats": False}
            async with AsyncSpecRoute(config=task.config(server, POLICY, **capabilities)) as client:
                made = {
                    "plain": client.with_options(policy=PLAIN),
                    "8 lanes": client,
                    "balanced": client.with_options(policy=BALANCED),
                }
                for _ in range(WARM):
                    await task.ask(made["balanced"], prompt)
                for _ in range(rounds):
                    for contender, each in made.items():
                        runs[contender].append(await task.ask(each, prompt))
        plain = runs.pop("plain")
        for contender, theirs in runs.items():
            _enter(found, name, contender, plain, theirs, task.tokens(script, plain[0].text))
    return found


def _enter(
    found: Outcome,
    name: str,
    contender: str,
    plain: list[task.Timed],
    theirs: list[task.Timed],
    tokens: int,
) -> None:
    gain = ratio([run.seconds for run in plain], [run.seconds for run in theirs])
    saved = statistics.median(a.seconds - b.seconds for a, b in zip(plain, theirs, strict=True))
    usd = [statistics.median(r.report.cost_usd or 0.0 for r in runs) for runs in (plain, theirs)]
    extra = usd[1] - usd[0]
    identical = sum(a.text == b.text for a, b in zip(plain, theirs, strict=True))
    found.rows.append(
        {
            "task": f"{name}, {tokens} tokens",
            "policy": contender,
            "methods": ", ".join(sorted({run.report.method for run in theirs})),
            "plain s": f"{statistics.median(run.seconds for run in plain):.2f}",
            "s": f"{statistics.median(run.seconds for run in theirs):.2f}",
            "plain / it (95 %)": str(gain),
            "identical": f"{identical}/{len(plain)}",
            "saved s": f"{saved:.2f}",
            "plain $/1000": task.per_thousand(usd[0]),
            "extra $/1000": task.per_thousand(extra),
            "$ a saved s": f"{extra / saved:.4f}" if saved > 0.1 else "–",
        }
    )
    found.held[f"{name}, {contender}: identical at T = 0"] = identical == len(plain)
    if name == "prose":
        found.held[f"prose, {contender}: at most 1 % slower"] = 1 / gain.value <= 1.01
    elif contender == "8 lanes":
        found.held["edit, 8 lanes: at least 1.8x"] = gain.value >= 1.8

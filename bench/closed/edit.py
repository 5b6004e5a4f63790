"""``prefix`` on an API with nothing but a prefill: the file with five changes, and prose."""

from __future__ import annotations

import statistics
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome, ratio
from specroute import AsyncSpecRoute

TITLE = "prefix: prefill only, TTFT 300 ms, TPOT 22 ms, n-gram draft"
POLICY: dict[str, Any] = {
    "preset": "fixed",
    "method": "prefix",
    "num_speculative_tokens": 8,
    "lanes": 8,
}


async def run(rounds: int) -> Outcome:
    found = Outcome()
    for name, script, prompt in (
        ("edit", task.edit_script(), task.ASK + task.FILE),
        ("prose", task.prose_script(), "Write a text of three hundred words."),
    ):
        with task.closed_server(script, process=True) as server:
            capabilities = {"prefill": "continue_final_message", "prefill_repeats": False}
            made = task.config(server, POLICY, **capabilities)
            async with AsyncSpecRoute(config=made) as client:
                plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
                pairs = []
                for _ in range(rounds):
                    pairs.append((await task.ask(plain, prompt), await task.ask(client, prompt)))
        gain = ratio([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs])
        identical = sum(a.text == b.text for a, b in pairs)
        saved = statistics.median(a.seconds - b.seconds for a, b in pairs)
        dollars = [(b.report.cost_usd or 0) - (a.report.cost_usd or 0) for a, b in pairs]
        extra = statistics.median(dollars)
        plain_usd = statistics.median(a.report.cost_usd or 0 for a, _ in pairs)
        found.rows.append(
            {
                "task": name,
                "tokens": str(task.tokens(script, pairs[0][0].text)),
                "plain s": f"{statistics.median(a.seconds for a, _ in pairs):.2f}",
                "prefix s": f"{statistics.median(b.seconds for _, b in pairs):.2f}",
                "plain / prefix (95 %)": str(gain),
                "identical": f"{identical}/{len(pairs)}",
                "saved s": f"{saved:.2f}",
                "plain $/1000": task.per_thousand(plain_usd),
                "extra $/1000": task.per_thousand(extra),
            }
        )
        found.held[f"{name}: identical at T = 0"] = identical == len(pairs)
        if name == "edit":
            found.held["edit: at least 1.8x"] = gain.value >= 1.8
        else:
            found.held["prose: at most 1 % slower"] = 1 / gain.value <= 1.01
    return found

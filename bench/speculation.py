"""Does speculation do what the physics says, and never worse than plain?

    python bench/speculation.py [--prompts 12] [--json]

Runs on the bundled models behind the reference server (where there is a pace it is simulated; the
logits are real), plain `AsyncOpenAI` and `AsyncSpecRoute` taking turns on every prompt:

1. customer service at TPOT 40 ms, R 10 ms under `latency`: the speed-up beside what
   `specroute.speedup` predicts from the survival S(k), draft time d and R measured in the run;
2. Python code at R 100 ms under the policy `balanced`: how much slower than plain it ends;
3. 25 prompts of each class without a pace, `score` and `prefix`: greedy answers as plain's.

Exits 1 if a bound doesn't hold: at least 1.8x and 90 % of the prediction; at most 3 % slower.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
from typing import Any

import openai
import torch

from specroute import AsyncSpecRoute, measure, speedup
from specroute.cli.demo import Screen
from specroute.cli.demo_plan import Plan, config
from specroute.comparison import Traffic, compare
from specroute.measure import Acceptance
from specroute.reference import corpus
from specroute.reference.bundled import target_dir
from specroute.reference.pace import Pace
from specroute.reference.running import ReferenceServer

MAX_TOKENS = 160


async def run(name: str, pace: str, policy: str, prompts: int, console: Any) -> dict[str, Any]:
    plan = Plan(None, None, None, "reference", None, policy, prompts, MAX_TOKENS, pace)
    with ReferenceServer(
        target_dir(), pace=pace, names=["target"], process=True, threads=1
    ) as server:
        async with (
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as plain,
            AsyncSpecRoute(config=config(plan, server.base_url, "target")) as client,
        ):
            problems = await client.warm_up()
            if problems:
                raise SystemExit("; ".join(problems))
            traffic = Traffic(name)
            screen = Screen(console, name, prompts)
            held_out = corpus.held_out(name, prompts, seed=2)
            async for pair in compare(plain, client, ("target", "demo"), held_out, MAX_TOKENS):
                traffic.pairs.append(pair)
                screen.done({"plain": pair.plain.seconds, "speculative": pair.speculative.seconds})
            speculator = client.router.speculation
            pooled = speculator.measurements.snapshot("lab:target", "draft", "", "argmax")
    overran = sum(record.overrun_s for record in server.log)
    found = traffic.as_dict()
    found["pace"] = pace
    found["policy"] = policy
    found["overrun_s"] = overran
    found["interval"] = interval(traffic)
    found["predicted"] = predict(traffic, pooled, Pace.parse(pace))
    found["agrees"] = all(pair.agrees for pair in traffic.pairs)
    return found


def predict(traffic: Traffic, pooled: Any, pace: Pace) -> dict[str, Any] | None:
    """The speed-up of whole answers that `speedup` gives for the best K at the measured figures."""
    reports = traffic.reports
    drafted = sum(r.drafted for r in reports)
    if not drafted or pooled.draft_s is None or pooled.verify_s is None or not pace.tpot:
        return None
    d = pooled.draft_s
    n = statistics.mean(p.speculative.tokens for p in traffic.pairs)
    context = statistics.mean(r.prompt_tokens or 0 for r in reports) + n / 2
    prefill = context / pace.prefill
    # R as measured: a scoring request less the target's own step.
    figures = speedup.Pace(tpot=pace.tpot, r=pooled.verify_s - pace.tpot, d=d)
    survival = Acceptance().survival(16, pooled.acceptance, default=0.5)
    best = speedup.best_score(survival, figures)
    plain_s = pace.rtt + prefill + n * pace.tpot
    rounds = speedup.score_answer(context, n, best.k, survival, figures)
    return {
        "k": best.k,
        "draft_s": d,
        "r_s": figures.r,
        "survival": [round(s, 3) for s in survival[:8]],
        "speedup": plain_s / (rounds.seconds + pace.rtt),
    }


def interval(traffic: Traffic, reps: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of plain seconds over speculative seconds, over prompts."""
    rng = random.Random(0)
    ratios = []
    for _ in range(reps):
        drawn = rng.choices(traffic.pairs, k=len(traffic.pairs))
        ratios.append(
            sum(p.plain.seconds for p in drawn) / sum(p.speculative.seconds for p in drawn)
        )
    ratios.sort()
    return ratios[int(0.025 * reps)], ratios[int(0.975 * reps)]


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--identical", type=int, default=25, help="prompts of the third run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    torch.set_num_threads(1)
    measure._DECAY_ROUND = 1.0  # the survival of the whole run, not of its end
    console = Console(stderr=options.json, highlight=False)
    runs = [
        ("customer-service", "tpot=40ms,rtt=10ms,prefill=10000", "latency"),
        ("python-code", "tpot=40ms,rtt=100ms,prefill=10000", "balanced"),
    ]
    found = [asyncio.run(run(*each, options.prompts, console)) for each in runs]
    fast, code = found
    unpaced = [
        asyncio.run(run(name, "", policy, options.identical, console))
        for policy in ("score:6", "prefix:6")
        for name in corpus.TRAFFIC
    ]
    held = {
        "at least 1.8x on customer service": fast["speedup"] >= 1.8,
        "at least 90 % of the prediction": fast["speedup"]
        >= 0.9 * (fast["predicted"] or {"speedup": 0})["speedup"],
        "at most 3 % slower than plain on code at R = 100 ms": code["speedup"] >= 1 / 1.03,
        "greedy answers agree with plain": all(each["agrees"] for each in (*found, *unpaced)),
    }
    if options.json:
        print(json.dumps({"runs": found, "held": held}, indent=2))
    else:
        table = Table(title="AsyncSpecRoute against AsyncOpenAI (simulated pace, tiny models)")
        for column in ("class", "R", "speed-up", "95 % interval", "predicted", "best K", "d, R ms"):
            table.add_column(column)
        for each in found:
            predicted = each["predicted"]
            low, high = each["interval"]
            table.add_row(
                each["name"],
                f"{Pace.parse(each['pace']).rtt * 1e3:.0f} ms",
                f"{each['speedup']:.2f}",
                f"{low:.2f}–{high:.2f}",
                f"{predicted['speedup']:.2f}" if predicted else "–",
                str(predicted["k"]) if predicted else "0",
                f"{predicted['draft_s'] * 1e3:.1f}, {predicted['r_s'] * 1e3:.0f}"
                if predicted
                else "–",
            )
        console.print(table)
        for each in unpaced:
            differ = len(each["differing"])
            console.print(
                f"{each['name']}, {each['policy']}: {each['prompts'] - differ} of "
                f"{each['prompts']} answers identical {each['differing'] or ''}"
            )
        for name, holds in held.items():
            console.print(f"{'held' if holds else 'NOT held'}: {name}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

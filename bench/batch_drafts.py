"""A batch of prompts with a local draft: in flight together, one after another, and plain.

    python bench/batch_drafts.py [--requests 32] [--tokens 64] [--pace …] [--dialect generate]

The same held-out customer-service questions through `client.batch`, each way with a fresh client
and server, in turn: plain; score one at a time; with many under way, scoring rounds in requests of
their own and joined into shared ones (`joint_rounds`); and the policy `balanced`. The bundled
models behind the reference server: the pace is simulated, the logits are real. Where computing
takes longer than the pace, it sets the time: "overrun" is the part of the time by which it did.
Answers are greedy, and are held against the plain ones. "Tokens a pass" are drafted tokens for each
pass through the draft, prompts read included. Nothing is drafted beside plain answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from specroute import AsyncSpecRoute
from specroute.reference import corpus
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.running import ReferenceServer


@dataclass(frozen=True, slots=True)
class Way:
    """How a batch is sent."""

    name: str
    concurrency: int
    policy: Any
    joint: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What it came to."""

    seconds: float
    tokens: int
    texts: list[str | None]
    requests: int
    rounds: int
    per_pass: float
    overrun: float
    methods: str


def ways(at_once: int, k: int) -> list[Way]:
    score = {"preset": "fixed", "method": "score", "num_speculative_tokens": k}
    return [
        Way("plain", at_once, {"preset": "fixed", "method": "plain"}),
        Way("score, one after another", 1, score),
        Way("score", at_once, score),
        Way("score, joint rounds", at_once, score, joint=True),
        Way("balanced, joint rounds", at_once, "balanced", joint=True),
    ]


async def run(way: Way, questions: list[Any], a: argparse.Namespace) -> Outcome:
    with ReferenceServer(
        target_dir(), pace=a.pace, names=["target"], process=True, threads=1
    ) as server:
        config = {
            "version": 1,
            "providers": {
                "lab": {
                    "profile": "reference",
                    "base_url": server.base_url,
                    "capabilities": {
                        "joint_rounds": way.joint,
                        **({"score": [a.dialect]} if a.dialect else {}),
                    },
                }
            },
            "drafts": {"draft": {"kind": "local", "model": str(draft_dir())}},
            "shadow": {"share": 0.0},
            "models": {
                "demo": {"targets": ["lab:target"], "drafts": ["draft"], "policy": "balanced"}
            },
        }
        async with AsyncSpecRoute(config=config) as client:
            problems = await client.warm_up()
            if problems:
                raise SystemExit("; ".join(problems))
            requests = [
                {"model": "demo", "messages": m, "max_tokens": a.tokens, "temperature": 0}
                for m in questions
            ]
            pool = client.router.speculation.pool
            draft = pool.drafter("draft")
            before = draft._stepper.steps
            began = time.perf_counter()
            result = await client.batch(
                requests, concurrency=way.concurrency, policy=way.policy, progress=False
            )
            seconds = time.perf_counter() - began
            failed = [item.error for item in result if not item.ok]
            if failed:
                raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
            reports = [item.report for item in result]
            steps = draft._stepper.steps - before
            drafted = sum(report.drafted for report in reports)
            overrun = sum(record.overrun_s for record in server.log)
            used = {report.method for report in reports}
            counts = {m: sum(report.method == m for report in reports) for m in sorted(used)}
            joint = [target.joint for target in pool.targets.values()]
            rounds = sum(report.rounds for report in reports)
            shared = sum(each.rounds for each in joint), sum(each.requests for each in joint)
            return Outcome(
                seconds,
                sum(item.body["usage"]["completion_tokens"] for item in result),
                [item.text for item in result],
                rounds - shared[0] + shared[1],
                rounds,
                drafted / steps if steps else 0.0,
                min(overrun / seconds / way.concurrency, 1.0),
                ", ".join(f"{m} {n}" for m, n in counts.items()),
            )


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--k", type=int, default=6)
    parser.add_argument("--pace", default="tpot=40ms,rtt=10ms,prefill=10000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dialect", help="score in this one; generate reads the prompt's cache")
    names = [way.name for way in ways(0, 0)]
    parser.add_argument("--leave-out", nargs="*", default=[], choices=names, metavar="WAY")
    a = parser.parse_args()
    torch.set_num_threads(1)
    questions = corpus.held_out("customer-service", a.requests, seed=4)
    found: dict[str, list[Outcome]] = {}
    for turn in range(a.repeats):
        for way in ways(a.concurrency, a.k):
            if way.name in a.leave_out:
                continue
            each = asyncio.run(run(way, questions, a))
            found.setdefault(way.name, []).append(each)
            said = f"{turn + 1}/{a.repeats} {way.name}: {each.seconds:.1f} s"
            print(said, file=sys.stderr, flush=True)
    print(f"{a.requests} requests of up to {a.tokens} tokens, {a.concurrency} at once, {a.pace}")
    print(
        "| way | tokens/s | of plain | one after another | rounds | in requests | tokens a pass | "
        "overrun | as plain | methods |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")

    def rate(each: Outcome) -> float:
        return each.tokens / each.seconds

    plain, alone = found["plain"], found.get("score, one after another")
    for name, outcomes in found.items():
        best = max(outcomes, key=rate)
        same = min(
            sum(x == y for x, y in zip(each.texts, plain[0].texts, strict=True))
            for each in outcomes
        )
        times = f"{rate(best) / max(map(rate, alone)):.1f}" if alone else "–"
        print(
            f"| {name} | {rate(best):.0f} | {rate(best) / max(map(rate, plain)):.2f} | {times} | "
            f"{best.rounds} | {best.requests} | {best.per_pass:.1f} | {best.overrun:.2f} | "
            f"{same} of {a.requests} | {best.methods} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

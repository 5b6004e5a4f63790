"""The sale day: more requests than the target can answer, with specroute and without.

    python bench/sale.py [--requests 320] [--load 2.5ms] [--prefill 20000] [--only 'NAME,NAME']

Held-out customer-service questions arrive (Poisson, seeded) at four times the rate at which the
paced target can answer them one token a step. Every setting gets the same questions at the same
moments and a fresh server. The pace is simulated and printed: a step takes `max(tpot, load ·
sequences)` and prompt tokens cost `1/prefill` seconds each, so that scoring a draft costs the
target what reading it costs. Answers are greedy; "identical" is the share of requests whose text
is the target's own (taken without load). Dollars: 3 / 0.30 / 15 per million input, cached and
output tokens of the target, and 2.50 per million drafted tokens, as if the draft were bought.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import torch

from specroute import AsyncSpecRoute, report
from specroute.reference import corpus
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.pace import Pace
from specroute.reference.running import ReferenceServer
from specroute.types import Report

MAX_TOKENS = 160
OVERLOAD = 4
PRICES = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
DRAFT_USD = 2.5e-6
ARTICLE = (-65.5, 240.0, 12.0)
"""What the article reports: TTFT, throughput and cost against plain, in per cent."""

SETTINGS: dict[str, Any] = {
    "plain AsyncOpenAI": None,
    "specroute plain": {"preset": "fixed", "method": "plain"},
    "balanced": {"preset": "balanced"},
    "latency": {"preset": "latency"},
    "fixed K=4": {"preset": "fixed", "num_speculative_tokens": 4},
    "fixed K=8": {"preset": "fixed", "num_speculative_tokens": 8},
    "ratio 0.5 K=8": {
        "preset": "fixed",
        "num_speculative_tokens": 8,
        "acceptance": "ratio",
        "tau": 0.5,
        "exactness": "heuristic",
    },
    "ratio 0.2 K=8": {
        "preset": "fixed",
        "num_speculative_tokens": 8,
        "acceptance": "ratio",
        "tau": 0.2,
        "exactness": "heuristic",
    },
    "typical K=8": {
        "preset": "fixed",
        "num_speculative_tokens": 8,
        "acceptance": "typical",
        "exactness": "heuristic",
    },
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end. Seconds from its arrival."""

    text: str
    ttft_s: float
    total_s: float
    tokens: int
    report: Report | None
    usage: tuple[int, int, int]
    """Prompt, cached and completion tokens billed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    answers: list[Answer]
    seconds: float
    overrun_s: float

    @property
    def usd(self) -> float:
        """Dollars of all answers, the draft's included."""
        total = 0.0
        for answer in self.answers:
            prompt, cached, completion = answer.usage
            total += (prompt - cached) * PRICES["input"] + cached * PRICES["cached_input"]
            total += completion * PRICES["output"]
        drafted = sum(a.report.drafted for a in self.answers if a.report is not None)
        return total / 1e6 + drafted * DRAFT_USD

    @property
    def label(self) -> str:
        labels = {a.report.exactness for a in self.answers if a.report is not None}
        return "/".join(sorted(labels)) or "exact"

    def quantile(self, values: Sequence[float], q: float) -> float:
        ordered = sorted(values)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def capacity(pace: Pace, prompt: float, answer: float) -> float:
    """Requests a second that the paced target can answer one token a step."""
    return 1 / (answer * pace.load + prompt / pace.prefill)


async def ask(client: Any, model: str, messages: Any, at: float) -> Answer:
    """Stream one answer at its moment; counted from then, not from when the loop came to it."""
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
    first, parts = None, []
    usage = None
    stream = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first = first or time.perf_counter()
            parts.append(text)
    end = time.perf_counter()
    try:
        found: Report | None = report(stream)
    except LookupError:
        found = None
    if found is not None:
        billed = (
            found.billed_prompt_tokens or 0,
            found.billed_cached_tokens or 0,
            found.billed_completion_tokens or 0,
        )
    else:
        details = usage.prompt_tokens_details
        billed = (
            usage.prompt_tokens,
            (details.cached_tokens or 0) if details else 0,
            usage.completion_tokens,
        )
    text = "".join(parts)
    return Answer(text, (first or end) - at, end - at, usage.completion_tokens, found, billed)


def config(url: str, policy: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": url,
                "probe": False,
                "prices": {"input": PRICES["input"], "output": PRICES["output"]},
                # The dialect that reads the server's prefix cache (SGLang's own endpoint).
                "capabilities": {"score": ["generate"]},
                "timeouts": {"first_token": 600, "stall": 600},
            }
        },
        "drafts": {"toy": {"kind": "local", "model": str(draft_dir()), "device": "cpu"}},
        "models": {"smart": {"targets": ["lab:target"], "drafts": ["toy"], "policy": policy}},
    }


async def measured(
    name: str, policy: Any, pace: str, questions: Sequence[Any], moments: Sequence[float]
) -> Outcome:
    """One setting: a fresh server, warmed up, then everybody arrives."""
    with ReferenceServer(
        target_dir(), pace=pace, names=["target"], process=True, threads=1
    ) as server:
        if policy is None:
            client: Any = openai.AsyncOpenAI(base_url=server.base_url, api_key="none")
            model = "target"
        else:
            client = AsyncSpecRoute(config=config(server.base_url, policy), max_retries=0)
            model = "smart"
        async with client:
            if policy is not None:
                problems = await client.warm_up()
                if problems:
                    print(f"  {name}: {'; '.join(problems)}", file=sys.stderr)
            for messages in corpus.held_out("customer-service", 3, seed=99):
                await ask(client, model, messages, time.perf_counter())
            start = time.perf_counter() + 0.2
            done = 0

            async def one(messages: Any, at: float) -> Answer:
                nonlocal done
                answer = await ask(client, model, messages, start + at)
                done += 1
                if sys.stderr.isatty():
                    print(f"\r  {name}: {done}/{len(questions)}", end="", file=sys.stderr)
                return answer

            answers = await asyncio.gather(*map(one, questions, moments))
            seconds = time.perf_counter() - start
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return Outcome(name, list(answers), seconds, sum(r.overrun_s for r in server.log))


async def truth(questions: Sequence[Any]) -> list[tuple[str, int, int]]:
    """The target's own greedy answers, one at a time and without a pace: (text, prompt, answer)."""
    with ReferenceServer(target_dir(), names=["target"], process=True, threads=1) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            out = []
            for messages in questions:
                answer = await ask(client, "target", messages, time.perf_counter())
                out.append((answer.text, answer.usage[0], answer.tokens))
    return out


async def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    pace = f"tpot={options.tpot},rtt={options.rtt},prefill={options.prefill},load={options.load}"
    questions = corpus.held_out("customer-service", options.requests, seed=7)
    own = await truth(questions)
    prompt = statistics.mean(p for _, p, _ in own)
    length = statistics.mean(n for _, _, n in own)
    rate = capacity(Pace.parse(pace), prompt, length)
    rng = random.Random(1)
    moments, now = [], 0.0
    for _ in questions:
        now += rng.expovariate(OVERLOAD * rate)
        moments.append(now)
    print(
        f"{len(questions)} requests (prompt {prompt:.0f}, answer {length:.0f} tokens on average), "
        f"pace {pace}: c = {rate:.2f} requests/s, arriving at {OVERLOAD * rate:.2f}/s",
        file=sys.stderr,
    )
    wanted = options.only.split(",") if options.only else list(SETTINGS)
    found = []
    for name in wanted:
        found.append(await measured(name, SETTINGS[name], pace, questions, moments))
        print(f"  {name}: {found[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    rows = [row(each, found[0], [text for text, _, _ in own]) for each in found]
    if options.json:
        print(json.dumps({"pace": pace, "capacity_rps": rate, "rows": rows}, indent=2))
    else:
        show(rows)
    if options.plot:
        plot(rows, Path(options.plot))
    return 0


def row(outcome: Outcome, plain: Outcome, own: Sequence[str]) -> dict[str, Any]:
    answers = outcome.answers
    first = [a.ttft_s for a in answers]
    total = [a.total_s for a in answers]
    ttft, base = statistics.mean(first), statistics.mean(a.ttft_s for a in plain.answers)
    same = sum(a.text == text for a, text in zip(answers, own, strict=True)) / len(own)
    drafted = sum(a.report.drafted for a in answers if a.report is not None)
    accepted = sum(a.report.accepted for a in answers if a.report is not None)
    return {
        "setting": outcome.name,
        "label": outcome.label,
        "ttft_s": ttft,
        "p50_s": outcome.quantile(total, 0.5),
        "p95_s": outcome.quantile(total, 0.95),
        "p99_s": outcome.quantile(total, 0.99),
        "requests_per_s": len(answers) / outcome.seconds,
        "usd": outcome.usd,
        "identical": same,
        "accepted_of_drafted": accepted / drafted if drafted else None,
        "ttft_change": 100 * (ttft / base - 1),
        "throughput_change": 100 * (plain.seconds / outcome.seconds - 1),
        "cost_change": 100 * (outcome.usd / plain.usd - 1),
        "overrun_s": outcome.overrun_s,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    head = ("setting", "label", "TTFT s", "p50", "p95", "p99", "req/s", "$", "identical",
            "TTFT", "throughput", "cost")  # fmt: skip
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for r in rows:
        cells = [
            r["setting"],
            r["label"],
            *(f"{r[key]:.2f}" for key in ("ttft_s", "p50_s", "p95_s", "p99_s", "requests_per_s")),
            f"{r['usd']:.3f}",
            f"{r['identical']:.1%}",
            *(f"{r[key]:+.0f} %" for key in ("ttft_change", "throughput_change", "cost_change")),
        ]
        print("| " + " | ".join(cells) + " |")
    print(
        "| article 1 | unlabelled | | | | | | | | "
        + " | ".join(f"{value:+.1f} %" for value in ARTICLE)
        + " |"
    )


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    names = [r["setting"] for r in rows]
    for axis, key, title, said in zip(
        axes,
        ("ttft_change", "throughput_change", "cost_change"),
        ("mean TTFT", "throughput", "cost"),
        ARTICLE,
        strict=True,
    ):
        axis.barh(names, [r[key] for r in rows])
        axis.axvline(said, linestyle="--", color="grey")
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(f"{title}, % against plain", fontsize=9)
        axis.invert_yaxis()
    figure.text(0.99, 0.01, "dashed: what article 1 reports", ha="right", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--tpot", default="40ms")
    parser.add_argument("--rtt", default="10ms")
    parser.add_argument("--prefill", default="20000", help="prompt tokens a second")
    parser.add_argument("--load", default="2.5ms", help="seconds a sequence adds to a step")
    parser.add_argument("--only", help="settings, separated by commas; the first is the yardstick")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="write a PNG here")
    sys.exit(asyncio.run(main(parser.parse_args())))

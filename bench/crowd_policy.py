"""What a crowd of requests wins and loses by its policy: ``python bench/crowd_policy.py``.

Virtual time: requests arrive at .1 to 4 times what a paced server can answer plain, after a calm
minute in which measurements settle. Two servers (scoring that costs less than decoding, and more),
two drafters (one that costs the others nothing, one that shares its steps). Compared: plain, fixed
K, the preset ``latency`` that is shown no crowd ("selfish"), and as it is. ``--png FILE`` draws it.
Exit status 1 where a line says FAIL.

``--live`` asks the paced reference server in a process of its own instead, with 1 to 64 requests at
a time, and prints tokens a second against plain's in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from specroute.config import parse_policy
from specroute.policy.base import Policy
from specroute.policy.make import make_policy
from specroute.simulate.crowd import Drafts, Rush, Rushed, Server, rushed

LOADS = (0.1, 0.5, 1.0, 2.0, 4.0)
SERVERS = (Server("reading is cheap"), Server("reading is dear", prefill=2000.0, rereads=True))
DRAFTERS = (Drafts("drafts cost nothing"), Drafts("drafts share steps", 0.003, 0.001))
FIXED = (2, 4, 8)
CALM = 0.1
"""Times the capacity at which nobody waits for anybody."""


def preset(table: str | dict[str, Any]) -> Policy:
    return make_policy(parse_policy(table))[0]


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "plain": partial(preset, {"preset": "fixed", "method": "plain"}),
    **{
        f"K = {k}": partial(preset, {"preset": "fixed", "num_speculative_tokens": k}) for k in FIXED
    },
    "selfish": partial(preset, "latency"),
    "latency": partial(preset, "latency"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    rush: Rush
    by: Mapping[str, Rushed]

    @property
    def best(self) -> float:
        """Tokens a second of the better of plain and the best fixed K."""
        return max(self.by[name].throughput for name in POLICIES if name not in ADAPTIVE)

    def mean_ratio(self, name: str) -> float:
        """Mean seconds against plain's."""
        return self.by[name].mean / self.by["plain"].mean

    def tail_ratio(self, name: str) -> float:
        """The 99th percentile of seconds against plain's."""
        return self.by[name].quantile(0.99) / self.by["plain"].quantile(0.99)


ADAPTIVE = ("selfish", "latency")


def judged(rush: Rush) -> Cell:
    """One rush under all policies, with the same luck."""
    found = {name: rushed(rush, make(), alone=name == "selfish") for name, make in POLICIES.items()}
    return Cell(rush, found)


def table(cells: Sequence[Cell]) -> str:
    """Of each load and policy: tokens a second, mean and p99 seconds, K, share speculated."""
    lines = []
    for cell in cells:
        rush = cell.rush
        lines.append(f"{rush.server.name}, {rush.drafts.name}, {rush.times:g} times the capacity")
        lines.append(
            f"  {'':9s} {'tokens/s':>8s} {'mean s':>8s} {'p50':>7s} {'p99':>7s} {'K':>5s} share"
        )
        for name, found in cell.by.items():
            k = f"{found.k:5.1f}" if found.k else "    –"
            lines.append(
                f"  {name:9s} {found.throughput:8.0f} {found.mean:8.2f} {found.quantile(0.5):7.2f} "
                f"{found.quantile(0.99):7.2f} {k} {found.speculated:5.2f}"
            )
    return "\n".join(lines)


def verdicts(cells: Sequence[Cell]) -> list[tuple[bool, str]]:
    """What must hold, with the figure."""
    shares = [(cell.by["latency"].throughput / cell.best, cell) for cell in cells]
    least = min(shares, key=lambda pair: pair[0])
    short = sum(share < 0.98 for share, _ in shares)
    calm = max(cell.mean_ratio("latency") for cell in cells if cell.rush.times <= CALM)
    slow = max(cells, key=lambda cell: cell.tail_ratio("latency"))
    return [
        (
            least[0] >= 0.98,
            "tokens a second at least .98 of the better of plain and the best fixed K, at every "
            f"load: {least[0]:.3f} at worst ({_where(least[1])}; {short} of {len(cells)} below)",
        ),
        (calm <= 1.02, f"at low load never more than 2 % slower than plain: {calm:.3f} at worst"),
        (
            slow.tail_ratio("latency") <= 1.1,
            "nobody starves: the slowest 1 % no more than 10 % later than plain's: "
            f"{slow.tail_ratio('latency'):.3f} at worst ({_where(slow)})",
        ),
    ]


def _where(cell: Cell) -> str:
    return f"{cell.rush.server.name}, {cell.rush.drafts.name}, {cell.rush.times:g}x"


def picture(cells: Sequence[Cell], path: Path) -> None:
    """Tokens a second against the best of plain and fixed K, by load."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(8.4, 5.6), dpi=90, sharex=True, sharey=True)
    for plot, (server, drafts) in zip(
        axes.flat, [(s, d) for s in SERVERS for d in DRAFTERS], strict=True
    ):
        here = [c for c in cells if c.rush.server == server and c.rush.drafts == drafts]
        for name, style in (
            ("plain", "k:"),
            ("K = 4", "C1--"),
            ("selfish", "C3-"),
            ("latency", "C2-"),
        ):
            shares = [cell.by[name].throughput / cell.best for cell in here]
            plot.plot([cell.rush.times for cell in here], shares, style, marker=".", label=name)
        plot.set_xscale("log")
        plot.set_xticks(LOADS, [f"{load:g}" for load in LOADS])
        plot.set_title(f"{server.name}, {drafts.name}", fontsize=9)
        plot.set_ylim(0, 1.08)
    axes[0, 0].legend(fontsize=8)
    figure.supxlabel("arrivals, times what the server can answer plain", fontsize=9)
    figure.supylabel("tokens a second, of the best of plain and fixed K", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


# --- live ---------------------------------------------------------------------------------------

PACES = {
    "reading is cheap": "tpot=80ms,load=20ms,prefill=100000,rtt=10ms",
    "reading is dear": "tpot=80ms,load=20ms,prefill=1000,rtt=10ms",
}
AT_A_TIME = (1, 8, 32, 64)
WORDS, CHANGED = 32, 0.03


@dataclass(frozen=True, slots=True)
class Live:
    tokens_s: float
    mean_s: float
    p99_s: float
    k: float
    speculated: float
    reason: str


def questions(count: int, name: str) -> list[tuple[str, str, str]]:
    """(prompt, what tells it from others, answer): a text to be repeated with few words changed."""
    rng = random.Random(name)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ane", "oli", "ure", "ick", "ast", "em")]
    found = []
    for i in range(count):
        text = [rng.choice(words) for _ in range(WORDS)]
        answer = [rng.choice(words) if rng.random() < CHANGED else word for word in text]
        end = f"End of text {name}-{i}."
        found.append((f"Text: {' '.join(text)}. {end}", end, " ".join(answer)))
    return found


async def asked(base_url: str, policy: Any, at_a_time: int, todo: Sequence[Any]) -> Live:
    from specroute import AsyncSpecRoute, report

    calm, rest = todo[:8], todo[8:]
    config = {
        "version": 1,
        "providers": {"lab": {"profile": "reference", "base_url": base_url}},
        "drafts": {"look": {"kind": "ngram"}},
        "models": {"m": {"targets": ["lab:target"], "drafts": ["look"], "policy": policy}},
    }
    async with AsyncSpecRoute(config=config) as client:
        ended = []

        async def ask(gate: asyncio.Semaphore, prompt: str, answer: str) -> None:
            async with gate:
                began = time.perf_counter()
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=100,
                    temperature=0,
                    stream=True,
                )
                text = "".join(
                    [c.choices[0].delta.content or "" async for c in stream if c.choices]
                )
                if text != answer:
                    raise SystemExit(f"not the server's own answer: {text!r} for {answer!r}")
                ended.append((time.perf_counter() - began, report(stream)))

        gate = asyncio.Semaphore(2)
        await asyncio.gather(*(ask(gate, prompt, answer) for prompt, _, answer in calm))
        ended.clear()
        began, gate = time.perf_counter(), asyncio.Semaphore(at_a_time)
        await asyncio.gather(*(ask(gate, prompt, answer) for prompt, _, answer in rest))
        took = time.perf_counter() - began
    seconds = sorted(each for each, _ in ended)
    reports = [each for _, each in ended if each is not None]
    rounds = sum(each.rounds for each in reports)
    return Live(
        sum(each.completion_tokens or 0 for each in reports) / took,
        fmean(seconds),
        seconds[int(0.99 * len(seconds))],
        sum(each.drafted for each in reports) / rounds if rounds else 0.0,
        fmean(each.method != "plain" for each in reports),
        reports[len(reports) // 2].plan_reason,
    )


async def live(kinds: Sequence[str], sizes: Sequence[int], waves: float) -> bool:
    """Prints each setting; whether ``latency`` never lowered the throughput by more than 5 %."""
    from specroute.reference.running import ReferenceServer

    policies: dict[str, Any] = {
        "plain": {"preset": "fixed", "method": "plain"},
        "K = 4": {"preset": "fixed", "num_speculative_tokens": 4},
        "latency": "latency",
    }
    held = True
    for kind in kinds:
        print(f"{kind} ({PACES[kind]})")
        for size in sizes:
            todo = questions(8 + max(6, round(size * waves)), f"{size}")
            answers = [{"when": end, "text": answer} for _, end, answer in todo]
            script = {"name": "target", "max_len": 16384, "answers": answers}
            base = 0.0
            for name, policy in policies.items():
                with ReferenceServer(
                    script, pace=PACES[kind], names=["target"], process=True
                ) as server:
                    found = await asked(server.base_url, policy, size, todo)
                base = base or found.tokens_s
                ratio = found.tokens_s / base
                held = held and (name != "latency" or ratio >= 0.95)
                print(
                    f"  {size:3d} at a time {name:8s} {found.tokens_s:6.1f} tokens/s, {ratio:5.2f} "
                    f"of plain; mean {found.mean_s:5.2f} s, p99 {found.p99_s:5.2f}; K "
                    f"{found.k:4.1f}, speculated {found.speculated:4.2f}",
                    flush=True,
                )
                if name == "latency":
                    print(f"      {found.reason}")
    return held


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, help="the plot")
    parser.add_argument("--requests", type=int, default=300, help="of each rush")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--live", action="store_true", help="the paced reference server instead")
    parser.add_argument("--kind", choices=list(PACES), help="with --live: only this server")
    parser.add_argument("--at-a-time", type=int, nargs="*", default=AT_A_TIME)
    parser.add_argument("--waves", type=float, default=1.5, help="requests for each at a time")
    args = parser.parse_args()
    if args.live:
        held = asyncio.run(
            live([args.kind] if args.kind else list(PACES), args.at_a_time, args.waves)
        )
        print(f"{'pass' if held else 'FAIL'}  `latency` keeps .95 of plain's tokens a second")
        return 0 if held else 1
    rushes = [
        Rush(server, drafts, times, requests=args.requests)
        for server in SERVERS
        for drafts in DRAFTERS
        for times in LOADS
    ]
    with ProcessPoolExecutor(args.workers) as pool:
        cells = list(pool.map(judged, rushes))
    print(table(cells), "\n")
    if args.png:
        picture(cells, args.png)
    found = verdicts(cells)
    for holds, said in found:
        print(f"{'pass' if holds else 'FAIL'}  {said}")
    return 0 if all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())

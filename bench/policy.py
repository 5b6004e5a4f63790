"""What the policies win and lose, in virtual time: ``make bench-policy``.

Runs the presets and other controllers through the grid of ``specroute.simulate`` on all cores, and
prints what must hold with pass or fail; exit status 1 where anything fails. ``--seed N`` draws
other luck for the same scenarios, ``--full`` runs every
combination, ``--out FILE`` keeps the figures as JSON lines, ``--png FILE`` draws the heat map.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean

from specroute.config import parse_policy
from specroute.policy.base import Policy
from specroute.policy.make import make_policy
from specroute.simulate.grid import full, grid
from specroute.simulate.judge import Cell, judge, mean_and_worst_decile, verdicts
from specroute.simulate.newcomer import newcomers
from specroute.simulate.peers import Confidence, Ema, FixedFive, Heuristic, Ucb
from specroute.simulate.planning import per_request_and_round
from specroute.simulate.scenario import ALPHAS, ROUND_TRIPS_S, Scenario
from specroute.simulate.tempered import tuning

PRESETS = ("latency", "balanced", "cost")
PEERS: Mapping[str, Callable[[], Policy]] = {
    "K = 5": FixedFive,
    "heuristic": Heuristic,
    "confidence": Confidence,
    "EMA": Ema,
    "UCB": Ucb,
}


def preset(name: str) -> Policy:
    """As a config names it."""
    return make_policy(parse_policy(name))[0]


CLASSES = 50
"""Traffic classes, of eight requests each, that every fifth scenario's requests are parted into."""


def judged(scenario: Scenario) -> Cell:
    """One scenario, in a process of its own."""
    presets = {name: partial(preset, name) for name in PRESETS}
    return judge(scenario, presets, PEERS, 0 if scenario.seed % 5 else CLASSES)


def cells_of(scenarios: Iterable[Scenario], workers: int) -> Iterable[Cell]:
    """All of them, in their order."""
    with ProcessPoolExecutor(workers) as pool:
        started = time.perf_counter()
        for done, cell in enumerate(pool.map(judged, scenarios), 1):
            if sys.stderr.isatty():
                took = time.perf_counter() - started
                print(f"\r{done} scenarios, {took:.0f} s", end="", file=sys.stderr)
            yield cell


# --- printing -----------------------------------------------------------------------------------


def table(cells: Sequence[Cell]) -> str:
    """Per policy: the mean and the worst decile of each ratio."""
    head = (
        f"{'policy':11s} {'seconds/plain':>15s} {'dollars/plain':>15s} {'seconds/oracle':>15s} "
        f"{'dollars/oracle':>15s} {'seconds/K=5':>13s} {'dollars/K=5':>13s} {'speculated':>10s}"
    )
    lines = [head, f"{'':11s} " + " ".join(["  mean worst 10%"] * 4)]
    five = [cell.scores["K = 5"] for cell in cells]
    for name in cells[0].scores:
        scores = [cell.scores[name] for cell in cells]
        columns = (
            [s.seconds for s in scores],
            [s.dollars for s in scores],
            [s.late_seconds for s in scores],
            [s.late_dollars for s in scores],
        )
        shown = [f"{a:7.3f} {b:7.3f}" for a, b in map(mean_and_worst_decile, columns)]
        pairs = list(zip(scores, five, strict=True))
        shown.append(f"{fmean(s.seconds / f.seconds for s, f in pairs):13.3f}")
        shown.append(f"{fmean(s.dollars / f.dollars for s, f in pairs):13.3f}")
        shown.append(f"{fmean(s.speculated for s in scores):10.2f}")
        lines.append(f"{name:11s} " + " ".join(shown))
    return "\n".join(lines)


def heat(cells: Sequence[Cell], name: str = "latency") -> dict[tuple[float, float], float]:
    """Mean speed-up over plain by (α, R)."""
    found: dict[tuple[float, float], list[float]] = {}
    for cell in cells:
        key = (cell.scenario.alpha, cell.scenario.r)
        found.setdefault(key, []).append(1 / cell.scores[name].seconds)
    return {key: fmean(values) for key, values in found.items()}


def heat_text(values: Mapping[tuple[float, float], float]) -> str:
    """The heat map for a terminal."""
    lines = ["speed-up of `latency` over plain, by α (down) and R in ms (across)"]
    lines.append("      " + "".join(f"{r * 1e3:7g}" for r in ROUND_TRIPS_S))
    colour = sys.stdout.isatty()
    for alpha in reversed(ALPHAS):
        row = []
        for r in ROUND_TRIPS_S:
            value = values.get((alpha, r))
            text = "      –" if value is None else f"{value:7.2f}"
            if colour and value is not None:
                shade = 232 + min(23, round(8 * (value - 1)) + 4) if value < 1.05 else 22
                shade = (22, 28, 34, 40, 46)[min(4, int((value - 1) * 2))] if value >= 1.05 else 236
                text = f"\x1b[48;5;{shade}m{text}\x1b[0m"
            row.append(text)
        lines.append(f"{alpha:5g} " + "".join(row))
    return "\n".join(lines)


def heat_png(values: Mapping[tuple[float, float], float], path: Path) -> None:
    """The heat map as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [[values.get((a, r), float("nan")) for r in ROUND_TRIPS_S] for a in ALPHAS]
    figure, axes = plt.subplots(figsize=(5.2, 3.8), dpi=90)
    image = axes.imshow(rows, origin="lower", aspect="auto", cmap="YlGn", vmin=1.0)
    axes.set_xticks(range(len(ROUND_TRIPS_S)), [f"{r * 1e3:g}" for r in ROUND_TRIPS_S])
    axes.set_yticks(range(len(ALPHAS)), [f"{a:g}" for a in ALPHAS])
    axes.set_xlabel("R, ms")
    axes.set_ylabel("α")
    axes.set_title("speed-up of `latency` over plain (simulated)", fontsize=10)
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
    figure.colorbar(image)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-pair", type=int, default=1, help="TPOTs for each α and R")
    parser.add_argument("--seed", type=int, default=0, help="other luck in the same scenarios")
    parser.add_argument("--full", action="store_true", help="every combination (days)")
    parser.add_argument("--most", type=int, default=None, help="stop after so many scenarios")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="figures as JSON lines")
    parser.add_argument("--png", type=Path, help="the heat map")
    args = parser.parse_args()
    scenarios = islice(full() if args.full else grid(args.per_pair, args.seed), args.most)
    started = time.perf_counter()
    cells = []
    out = args.out.open("w") if args.out else None
    for cell in cells_of(scenarios, args.workers):
        cells.append(cell)
        if out:
            out.write(json.dumps(asdict(cell)) + "\n")
    if out:
        out.close()
    print(
        f"{len(cells)} scenarios of {cells[0].scenario.requests} requests and "
        f"{cells[0].scenario.tokens} tokens each, {time.perf_counter() - started:.0f} s"
    )
    print("seconds and dollars: all requests; oracle: the best fixed plan, requests 201-400\n")
    print(table(cells), "\n")
    values = heat(cells)
    print(heat_text(values), "\n")
    if args.png:
        heat_png(values, args.png)
    found = verdicts(cells, list(PEERS))
    found.append(tuning())
    found += newcomers(partial(preset, "latency"))
    found += per_request_and_round(preset("latency"))
    for verdict in found:
        print(f"{'pass' if verdict.holds else 'FAIL'}  {verdict.said}: {verdict.figure}")
    return 0 if all(verdict.holds for verdict in found) else 1


if __name__ == "__main__":
    sys.exit(main())

"""200 streams at once, a tenth of them hit by a fault on one of two targets: who is answered, when.

``make bench-faults`` runs it. Two fault servers in processes of their own imitate a model; the
first target resets, refuses (429, 500), cuts or stalls every tenth call, by a seeded coin. Rounds
with and without faults take turns. The deadline for silence is half of the fault-free p99 of the
first round. Printed: how many were answered right, and p50 and p99 with and without faults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from specroute import AsyncSpecRoute
from specroute.testing import FaultServer, Sometimes, faults

WORDS = "one two three four five six seven eight nine ten"
PACE = "ttft=500ms,tpot=400ms"
MESSAGES: Any = [{"role": "user", "content": "Count!"}]


class Server:
    """A fault server's process; ``share`` of its calls meet a fault."""

    def __init__(self, share: float, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", json.dumps([share, seed])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(share: float, seed: int) -> None:
    """Serve until the input ends."""
    kinds = [
        faults.reset(),
        faults.rate_limited(),
        faults.rate_limited(retry_after=1),
        faults.status(500),
        faults.cut(0),
        faults.cut(5),
        faults.stall(0),
        faults.stall(5),
    ]
    rules = [Sometimes(share, kinds, seed=seed)] if share else []
    with FaultServer(*rules, answer=WORDS, pace=PACE) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


async def round_of(urls: list[str], streams: int, each: int, silence_s: float) -> list[Any]:
    """Seconds of every answer; what else came of one, in words."""
    limits = {"connect": 5, "first_token": silence_s, "stall": silence_s, "total": 60}
    providers = {
        name: {"profile": "reference", "base_url": url, "timeouts": limits}
        for name, url in zip("ab", urls, strict=True)
    }
    model = {"targets": ["a:toy", "b:toy"]}
    config = {"version": 1, "providers": providers, "models": {"toy": model}}
    async with AsyncSpecRoute(config=config, max_retries=2) as client:

        async def one() -> Any:
            started, text = time.perf_counter(), ""
            try:
                stream = await client.chat.completions.create(
                    model="toy", messages=MESSAGES, stream=True
                )
                async for chunk in stream:
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
            except Exception as error:  # noqa: BLE001 - counted
                return f"{type(error).__name__}: {error}"[:80]
            return time.perf_counter() - started if text == WORDS else f"wrong: {text!r}"

        async def worker() -> list[Any]:
            return [await one() for _ in range(each)]

        found = await asyncio.gather(*(worker() for _ in range(streams)))
    return [each for many in found for each in many]


def p(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


async def main(streams: int, each: int, rounds: int) -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    silence_s = 30.0
    ratios, failed, asked = [], 0, 0
    for number in range(rounds):
        figures = []
        for share in (0.0, 0.1):
            servers = [Server(share, number), Server(0.0, number)]
            try:
                found = await round_of([s.url for s in servers], streams, each, silence_s)
            finally:
                for server in servers:
                    server.close()
            seconds = [s for s in found if isinstance(s, float)]
            others = [s for s in found if not isinstance(s, float)]
            failed += len(others)
            asked += len(found)
            figures.append(p(seconds, 0.99))
            if number == 0 and not share:
                silence_s = figures[0] / 2
            print(
                f"round {number + 1}, {share:4.0%} faults: {len(seconds)}/{len(found)} right, "
                f"p50 {p(seconds, 0.5):.2f} s, p99 {figures[-1]:.2f} s, limit {silence_s:.2f} s",
                *others[:3],
                flush=True,
            )
        ratios.append(figures[1] / figures[0])
    print(
        f"{asked - failed}/{asked} answered right; p99 with faults is "
        f"{statistics.median(ratios):.2f}x of that without (rounds: "
        f"{', '.join(f'{r:.2f}' for r in ratios)})"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.serve:
        serve(*json.loads(options.serve))
    else:
        raise SystemExit(asyncio.run(main(options.streams, options.each, options.rounds)))

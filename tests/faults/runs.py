"""Many requests with random faults and readers who leave, and what is left of them afterwards.

``python -m tests.faults.runs --runs 10000`` prints one line for each kind of request; the test runs
a few hundred. What must hold of each request is ``cells``' matter.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from specroute.testing import Fault, Sometimes, faults
from tests.engine.answers import TEXT
from tests.faults.cells import FALL_BACK, MESSAGES, SETUPS, Outcome, World, ask, world

TIMEOUTS = {"connect": 5, "first_token": 4, "stall": 2, "total": 30}
AT_ONCE = 4
SHARE = 0.15
"""Of the calls to either target; a circuit breaker and cooling keep requests from most of them."""
LEAVES = 0.1
"""The share of readers who leave in the middle."""


def some_faults(rng: Random) -> list[Fault]:
    """Fifty at random places of an answer; those that only a deadline ends are rare."""
    made: list[Fault] = []
    for _ in range(50):
        after = rng.randint(0, 26)
        kinds = [
            faults.reset(),
            faults.hang_up(),
            faults.status(rng.choice([500, 502, 503, 408, 409])),
            faults.rate_limited(),
            faults.rate_limited(retry_after_ms=rng.randint(1, 30)),
            faults.unauthorized(),
            faults.insufficient_quota(),
            faults.html(),
            faults.empty(),
            faults.invalid_json(),
            faults.wrong_shape(),
            faults.error_in_200(),
            faults.cut(after),
            faults.ends_early(after),
            faults.malformed_event(after),
            faults.error_event(after),
            faults.whole_answer(),
            faults.wrong_content_type(),
            faults.no_done(),
            faults.lies(rng.choice(["generated_only", "shifted", "positive", "nulls", "fewer"])),
        ]
        made.append(rng.choice(kinds))
    return made


@dataclass
class Tally:
    """What became of the requests of one kind."""

    setup: str
    right: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    faults: int = 0
    """Calls that met a fault."""
    leaks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, out: Outcome, rng: Random) -> None:
        if out.error is None:
            self.right += 1
        else:
            self.errors[type(out.error).__name__] += 1
        # Requests beside each other share the list of reports; each alone is judged in the table.
        self.broken += [b for b in out.broken if "reports of" not in b and "draft" not in b]

    def __str__(self) -> str:
        errors = ", ".join(f"{n} {name}" for name, n in self.errors.most_common()) or "none"
        return (
            f"{self.setup:24}{self.right:7}{self.left:7}{sum(self.errors.values()):7}"
            f"{self.faults:8}{len(self.broken):8}{len(self.leaks):7}  {self.seconds:6.0f} s  {errors}"
        )


HEAD = f"{'kind':24}{'right':>7}{'left':>7}{'errors':>7}{'faults':>8}{'wrong':>8}{'leaks':>7}"


async def leaves(made: World, rng: Random) -> str | None:
    """Read a few pieces of a stream and leave; what is wrong with them, if anything."""
    read: list[str] = []

    async def reader() -> None:
        stream = await made.client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, temperature=0
        )
        for _ in range(rng.randint(0, 8)):
            chunk = await anext(stream, None)
            if chunk is None:
                break
            read.extend(c.delta.content or "" for c in chunk.choices)
        if rng.random() < 0.5:
            await stream.close()

    task = asyncio.ensure_future(reader())
    if rng.random() < 0.3:
        await asyncio.wait([task], timeout=rng.random() * 0.02)
        task.cancel()
    with suppress(Exception, asyncio.CancelledError):
        await task
    text = "".join(read)
    return None if TEXT.startswith(text) else f"left with {text!r}"


async def run(setup: str, count: int, seed: int = 0) -> Tally:
    """``count`` requests of one kind, a few at a time, with one client."""
    tally = Tally(setup)
    rng = Random(f"{setup}:{seed}")
    before = asyncio.all_tasks()
    threads = threads_now()
    started = time.perf_counter()
    scripts = [[Sometimes(SHARE, some_faults(rng), seed=seed + n)] for n in range(2)]
    async with world(
        SETUPS[setup],
        *scripts[0],
        spare=scripts[1],
        timeouts=TIMEOUTS,
        max_retries=1,
        fallback_on=FALL_BACK,
    ) as made:
        todo = iter(range(count))

        async def worker(own: Random) -> None:
            for _ in todo:
                if own.random() < LEAVES:
                    wrong = await leaves(made, own)
                    tally.left += 1
                    tally.broken += [wrong] if wrong else []
                else:
                    tally.add(await ask(made, stream=own.random() < 0.6), own)

        await asyncio.gather(*(worker(Random(rng.random())) for _ in range(AT_ONCE)))
        gc.collect()
        for server in made.servers:
            await server.idle(5)
        shadows = [t for t in asyncio.all_tasks() if t.get_name() == "shadow rounds"]
        if shadows:  # Drafting goes on after the last answer, to see what would be accepted.
            await asyncio.wait(shadows, timeout=5)
        if made.drafter.open_sessions:
            tally.leaks.append(f"{made.drafter.open_sessions} draft sessions")
        met = [r for server in made.servers for r in server.requests if r.fault is not None]
        tally.faults = len(met)
        servers = made.servers
    gc.collect()
    left = asyncio.all_tasks() - before
    if left:  # The collection may have begun to close openai's own dropped generators.
        _, left = await asyncio.wait(left, timeout=1)
    tally.leaks += [f"task {t.get_name()}" for t in left]
    tally.leaks += [f"{s.open_connections} connections" for s in servers if s.open_connections]
    tally.leaks += [f"thread {name}" for name in threads_now() - threads]
    tally.seconds = time.perf_counter() - started
    return tally


def threads_now() -> set[str]:
    """The names of the threads; asyncio's own pool, which is the loop's, is left out."""
    return {t.name for t in threading.enumerate() if not t.name.startswith("asyncio_")}


def rss() -> float:
    """MiB of memory in use (Linux; elsewhere 0)."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 / 2**20 if path.exists() else 0.0


async def main(runs: int, seed: int) -> int:
    # Nothing that was measured here is of use to anybody, nor the other way round.
    os.environ["SPECROUTE_CACHE_DIR"] = ""
    print(HEAD)
    total: Counter[str] = Counter()
    memory: list[float] = []
    parts = 2
    for part in range(parts):
        for setup in SETUPS:
            tally = await run(setup, runs // len(SETUPS) // parts, seed + part)
            print(tally, flush=True)
            for said in (*tally.broken[:3], *tally.leaks[:3]):
                print("   ", said)
            total.update(
                right=tally.right,
                left=tally.left,
                errors=sum(tally.errors.values()),
                wrong=len(tally.broken),
                leaks=len(tally.leaks),
                faults=tally.faults,
            )
            memory.append(rss())
    half = len(memory) // 2
    grown = statistics.median(memory[half:]) - statistics.median(memory[:half])
    print(
        dict(total), f"memory {memory[0]:.0f} -> {memory[-1]:.0f} MiB ({grown:+.0f} MiB by halves)"
    )
    return 1 if total["wrong"] or total["leaks"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options: Any = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.runs, options.seed)))

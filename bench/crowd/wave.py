"""One wave: every question in flight at once, and what that was like.

Knows tasks, clocks and this process's files; knows neither client nor server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.crowd.asking import Ask, Outcome
from bench.crowd.questions import Question

TICK_S = 0.02
"""How often the loop is asked whether it still turns."""


@dataclass(slots=True)
class Loop:
    """How late the event loop came to a timer, and how many files were open at most."""

    lags: list[float] = field(default_factory=list)
    files: int = 0


@dataclass(frozen=True, slots=True)
class Wave:
    """Seconds of one wave's requests, in order of their ends."""

    seconds: float
    cpu_s: float
    """Of this process."""
    latencies: list[float]
    ttfts: list[float]
    errors: list[str]
    wrong: int
    methods: Counter[str]
    lag_p99_s: float
    lag_max_s: float
    files: int
    left: int = 0
    """Requests that were cancelled."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "latency": spread(self.latencies),
            "ttft": spread(self.ttfts),
            "errors": len(self.errors),
            "said": self.errors[:3],
            "wrong": self.wrong,
            "methods": dict(self.methods),
            "lag_p99_s": self.lag_p99_s,
            "lag_max_s": self.lag_max_s,
            "files": self.files,
            "cancelled": self.left,
        }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the slowest."""
    ordered = sorted(seconds)
    if not ordered:
        return dict.fromkeys(("p50", "p95", "p99", "max"), 0.0)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}


async def wave(
    ask: Ask,
    model: str,
    questions: Sequence[Question],
    *,
    stream: bool,
    leave: Sequence[float | None] = (),
) -> Wave:
    """Ask everything at once. ``leave``: after how many seconds each caller goes (``None``: never);
    callers who leave are not counted as answered."""
    async with watching() as loop:
        cpu, started = time.process_time(), time.perf_counter()
        tasks = [asyncio.create_task(ask(model, q, stream)) for q in questions]
        handle = asyncio.get_running_loop().call_later
        timers = [
            handle(at, t.cancel) for t, at in zip(tasks, leave, strict=False) if at is not None
        ]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    for timer in timers:
        timer.cancel()
    answered = [(o, q) for o, q in zip(found, questions, strict=True) if isinstance(o, Outcome)]
    right = [o for o, q in answered if o.error is None and o.text == q.text]
    lags = sorted(loop.lags) or [0.0]
    return Wave(
        seconds=seconds,
        cpu_s=cpu,
        latencies=[o.seconds for o in right],
        ttfts=[o.ttft_s for o in right],
        errors=[o.error for o, _ in answered if o.error is not None],
        wrong=sum(o.error is None and o.text != q.text for o, q in answered),
        methods=Counter(o.method or "unknown" for o in right),
        lag_p99_s=lags[int(0.99 * (len(lags) - 1))],
        lag_max_s=lags[-1],
        files=loop.files,
        left=len(found) - len(answered),
    )


@asynccontextmanager
async def watching() -> AsyncIterator[Loop]:
    """Watch the running loop while the block lasts."""
    seen = Loop()

    async def look() -> None:
        turn = 0
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            seen.lags.append(max(time.perf_counter() - due, 0.0))
            turn += 1
            if turn % 10 == 0:
                seen.files = max(seen.files, open_files())

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


def open_files(pid: int | str = "self") -> int:
    """Files, sockets and pipes that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def memory_mib(pid: int | str = "self") -> tuple[float, float]:
    """(resident now, resident at most) of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) / 1024
    return found["VmRSS"], found["VmHWM"]

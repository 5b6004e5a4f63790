"""What ``AsyncSpecRoute`` costs: wall time beside ``AsyncOpenAI`` on the same upstream transport.

``make bench`` runs it. A lean server in a process of its own answers plain and streamed (20 chunks)
calls; the contenders take turns, round by round, in an order that changes, and what is compared is
the ratio within a round. Printed: the median wall time of a call, the median ratio of wall times
with a bootstrap interval, and that of CPU times, which other work on the machine disturbs less;
then the requests per second of each at 200 at once. ``--with-litellm`` measures LiteLLM's Router
beside them, in an environment and over an HTTP stack of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEER_VENV = HERE.parent / ".cache" / "litellm-venv"
PEER_VERSION = "litellm==1.110.2"
MESSAGES: Any = [{"role": "user", "content": "Say a few words about the weather today, please."}]
CALLS = {1: 120, 50: 300, 200: 600}
"""Calls in a round, by how many are made at once; half as many when streamed."""

CROWD = 200
"""How many calls at once the requests per second are told of."""
SHARE = 0.9
"""Of ``AsyncOpenAI``'s requests per second, that ``AsyncSpecRoute`` has to sustain."""

Run = Callable[[bool, int, int], Awaitable[float]]


@dataclass
class Contender:
    """A name and how it makes ``calls`` calls, ``at_once`` of them at a time: seconds in all."""

    name: str
    run: Run
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of this process: means nothing for a contender in another."""


class Server:
    """The responder's process."""

    def __init__(self, pace: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "responder.py"), "--pace", str(pace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}/v1"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def make_calls(client: Any, stream: bool, at_once: int, calls: int) -> float:
    """Make the calls with one openai-like client."""
    left = iter(range(calls))

    async def worker() -> None:
        for _ in left:
            answer = await client.chat.completions.create(
                model="bench-model", messages=MESSAGES, stream=stream
            )
            if stream:
                async for _chunk in answer:
                    pass

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.perf_counter() - started


class Peer:
    """LiteLLM's Router in its own process and environment, driven over pipes."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [str(PEER_VENV / "bin" / "python"), str(HERE / "litellm_peer.py"), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )

    async def run(self, stream: bool, at_once: int, calls: int) -> float:
        def ask() -> float:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps([stream, at_once, calls]) + "\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())

        return await asyncio.to_thread(ask)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def install_peer() -> None:
    """Make LiteLLM's environment (once)."""
    python = PEER_VENV / "bin" / "python"
    marker = PEER_VENV / PEER_VERSION
    if marker.exists():
        return
    print(f"Installing {PEER_VERSION} into an environment of its own …", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(PEER_VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, PEER_VERSION], check=True)
    marker.touch()


def ratio(
    ours: Sequence[float], theirs: Sequence[float], rng: random.Random
) -> tuple[float, float, float]:
    """The median ratio within rounds, and its 95 % bootstrap interval."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def per_second(rows: list[dict[str, Any]], contenders: Sequence[str]) -> list[str]:
    """The lines on requests per second, from the rows with ``CROWD`` at once."""
    lines = [f"{'requests per second':28}" + "".join(f"{name:>16}" for name in contenders)]
    for row in rows:
        if not row["what"].endswith(f"x{CROWD}"):
            continue
        rates = "".join(f"{1e3 / row[name]:>16.0f}" for name in contenders if name in row)
        share = 1 / row["ratio"][0]
        verdict = "pass" if share >= SHARE else "FAIL"
        lines.append(f"{row['what']:28}{rates}  {share:.2f} of openai's (>= {SHARE}): {verdict}")
    return lines


async def measure(
    contenders: list[Contender], stream: bool, at_once: int, rounds: int, rng: random.Random
) -> None:
    """Fill each contender's ``seconds`` (a call), one value a round, the first round left out."""
    calls = max(CALLS[at_once] // (2 if stream else 1), at_once)
    for one in contenders:
        one.seconds, one.cpu = [], []
        await one.run(stream, at_once, max(at_once, 20))
    for _ in range(rounds):
        for one in rng.sample(contenders, len(contenders)):
            started = time.process_time()
            one.seconds.append(await one.run(stream, at_once, calls) / calls)
            one.cpu.append((time.process_time() - started) / calls)


def contender(name: str, client: Any) -> Contender:
    async def run(stream: bool, at_once: int, calls: int) -> float:
        return await make_calls(client, stream, at_once, calls)

    return Contender(name, run)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two chunks")
    parser.add_argument("--transports", default="httpx2,aiohttp")
    parser.add_argument("--at-once", default="1,50,200")
    parser.add_argument("--with-litellm", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    if options.with_litellm:
        install_peer()

    import openai

    from specroute import AsyncSpecRoute

    rng = random.Random(7)
    server = Server(options.pace)
    rows: list[dict[str, Any]] = []
    peer = Peer(server.url) if options.with_litellm else None
    make: dict[str, Callable[[], Any]] = {
        "httpx2": openai.DefaultAsyncHttpxClient,
        "aiohttp": openai.DefaultAioHttpClient,
    }
    print(
        f"{'':28}{'AsyncOpenAI':>12}{'AsyncSpecRoute':>16}{'ratio':>8}  {'95 %':<16}{'CPU':>6}  ",
        end="",
    )
    print("LiteLLM Router" if peer else "")
    worst = 0.0
    for transport in options.transports.split(","):
        arguments: dict[str, Any] = {"api_key": "bench", "base_url": server.url}
        plain = openai.AsyncOpenAI(**arguments, http_client=make[transport]())
        ours = AsyncSpecRoute(**arguments, http_client=make[transport]())
        contenders = [contender("openai", plain), contender("specroute", ours)]
        if peer is not None:
            contenders.append(Contender("litellm", peer.run))
        for stream in (False, True):
            for at_once in map(int, options.at_once.split(",")):
                await measure(contenders, stream, at_once, options.rounds, rng)
                what = f"{transport} {'stream' if stream else 'plain'} x{at_once}"
                theirs = contenders[0].seconds
                mid, low, high = ratio(contenders[1].seconds, theirs, rng)
                worst = max(worst, mid)
                medians = [statistics.median(one.seconds) * 1e3 for one in contenders]
                line = f"{what:28}{medians[0]:>9.3f} ms{medians[1]:>13.3f} ms{mid:>8.3f}"
                cpu = ratio(contenders[1].cpu, contenders[0].cpu, rng)
                line += f"  {low:.3f} .. {high:.3f} {cpu[0]:>6.3f}"
                if len(contenders) > 2:
                    times = ratio(contenders[2].seconds, theirs, rng)[0]
                    line += f"  {medians[2]:.3f} ms ({times:.2f}x)"
                print(line, flush=True)
                rows.append({"what": what, "ratio": [mid, low, high], "cpu_ratio": cpu})
                rows[-1].update({c.name: m for c, m in zip(contenders, medians, strict=True)})
        await plain.close()
        await ours.close()
    if peer is not None:
        peer.close()
    server.close()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if str(CROWD) in options.at_once.split(","):
        print("\n".join(per_second(rows, ["openai", "specroute", *(["litellm"] if peer else [])])))
    print(f"worst median ratio {worst:.3f} (aim: at most 1.10)")
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))

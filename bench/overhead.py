"""What ``AsyncSpecRoute`` costs beside ``AsyncOpenAI`` on the same upstream transport.

    python bench/overhead.py [--rounds 7] [--with-litellm] [--write docs/benchmarks.md]

A lean server in a process of its own answers plain and streamed (20 chunks) calls; the contenders
(a plain client, and one by a config of one target) take turns, round by round, in an order that
changes, and what is compared is the ratio within a round: of wall times, with a bootstrap interval,
and of CPU times, which other work on the machine disturbs less; then the requests per second of
each at 200 at once. ``--with-litellm`` measures LiteLLM's Router among them, in an environment and
over an HTTP stack of its own, in three of the rounds and with half the calls, since it takes five
times as long. Exits with 1 where a criterion fails.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import overhead_table as tables
from bench import page
from bench.overhead_table import Row, Turn

HERE = Path(__file__).resolve().parent
PEER_VENV = HERE.parent / ".cache" / "litellm-venv"
PEER_VERSION = "litellm==1.110.2"
PEER_ROUNDS = 3
MESSAGES: Any = [{"role": "user", "content": "Say a few words about the weather today, please."}]
MODEL = "bench-model"
COMMAND = "python bench/overhead.py --with-litellm --write docs/benchmarks.md"
CALLS = {1: 120, 50: 300, 200: 600}
"""Calls in a round, by how many are made at once; half as many when streamed."""

Run = Callable[[bool, int, int], Awaitable[Turn]]
"""Makes so many calls, streamed or not, so many of them at once: what one of them took."""


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


def by_client(client: Any) -> Run:
    """How an openai-like client makes its calls."""

    async def run(stream: bool, at_once: int, calls: int) -> Turn:
        left = iter(range(calls))

        async def worker() -> None:
            for _ in left:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=MESSAGES, stream=stream
                )
                if stream:
                    async for _chunk in answer:
                        pass

        gc.collect()  # What the one before has left is not this one's.
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return Turn((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)

    return run


class Peer:
    """LiteLLM's Router in its own process and environment, driven over pipes."""

    def __init__(self, url: str) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self._process = subprocess.Popen(
            [str(PEER_VENV / "bin" / "python"), str(HERE / "litellm_peer.py"), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )

    async def run(self, stream: bool, at_once: int, calls: int) -> Turn:
        calls = max(calls // 2, at_once)

        def ask() -> str:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps([stream, at_once, calls]) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()

        answer = await asyncio.to_thread(ask)
        if not answer:
            self._said.seek(0)
            said = self._said.read()[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"LiteLLM's process ended early; it said at last:\n{said}")
        wall, cpu = json.loads(answer)
        return Turn(wall / calls, cpu / calls)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._said.close()


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


async def measure(
    contenders: dict[str, Run],
    transport: str,
    stream: bool,
    at_once: int,
    rounds: int,
    rng: random.Random,
) -> Row:
    """One row; a round of its own before the first warms everybody up."""
    calls = max(CALLS.get(at_once, 3 * at_once) // (2 if stream else 1), at_once)
    row = Row(transport, stream, at_once, {name: {} for name in contenders})
    among = {each * (rounds - 1) // max(PEER_ROUNDS - 1, 1) for each in range(PEER_ROUNDS)}
    for run in contenders.values():
        await run(stream, at_once, max(at_once, 20))
    for each in range(rounds):
        if sys.stderr.isatty():
            print(
                f"\r{row.name}: round {each + 1} of {rounds} ", end="", file=sys.stderr, flush=True
            )
        for name in rng.sample(list(contenders), len(contenders)):
            if name == "litellm" and each not in among:
                continue
            row.turns[name][each] = await contenders[name](stream, at_once, calls)
    if sys.stderr.isatty():
        print("\r" + " " * 60, end="\r", file=sys.stderr, flush=True)
    return row


def about(rounds: int, began: tuple[float, ...], seconds: float, peer: bool) -> str:
    """Where and how this was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("openai", "httpx2", "aiohttp"))
    others = f"; LiteLLM {PEER_VERSION.partition('==')[2]} in {min(PEER_ROUNDS, rounds)}"
    return (
        f"{rounds} rounds{others if peer else ''}; {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {packages}; load average {began[0]:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after; {seconds:.0f} s in all."
    )


def config(url: str) -> dict[str, Any]:
    """A model with one target and nothing more."""
    provider = {"profile": "generic", "base_url": url}
    model = {"targets": [f"here:{MODEL}"]}
    return {"version": 1, "providers": {"here": provider}, "models": {MODEL: model}}


async def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two chunks")
    parser.add_argument("--transports", default="httpx2,aiohttp")
    parser.add_argument("--at-once", default="1,50,200")
    parser.add_argument("--with-litellm", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--write", type=Path, help="the page to put the tables into")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.with_litellm:
        install_peer()

    import openai

    from specroute import AsyncSpecRoute

    rng = random.Random(7)
    load, started = os.getloadavg(), time.perf_counter()
    server = Server(options.pace)
    peer = Peer(server.url) if options.with_litellm else None
    make: dict[str, Callable[[], Any]] = {
        "httpx2": openai.DefaultAsyncHttpxClient,
        "aiohttp": openai.DefaultAioHttpClient,
    }
    rows: list[Row] = []
    try:
        for transport in options.transports.split(","):
            to: dict[str, Any] = {"api_key": "bench", "base_url": server.url}
            plain = openai.AsyncOpenAI(**to, http_client=make[transport]())
            ours = AsyncSpecRoute(**to, http_client=make[transport]())
            by_config = AsyncSpecRoute(config=config(server.url), http_client=make[transport]())
            clients = {"openai": plain, "specroute": ours, "config": by_config}
            contenders = {name: by_client(client) for name, client in clients.items()}
            if peer is not None:
                contenders["litellm"] = peer.run
            if not rows:
                print(tables.head(list(contenders)), flush=True)
            for stream in (False, True):
                for at_once in map(int, options.at_once.split(",")):
                    rows.append(
                        await measure(contenders, transport, stream, at_once, options.rounds, rng)
                    )
                    print(tables.line(rows[-1]), flush=True)
            for client in clients.values():
                await client.close()
    finally:
        if peer is not None:
            peer.close()
        server.close()
    lines, good = tables.criteria(rows)
    rest = [tables.per_second(rows), "```text\n" + "\n".join(lines) + "\n```"]
    said = about(options.rounds, load, time.perf_counter() - started, peer is not None)
    rest = [part for part in (*rest, said) if part]
    print("\n" + "\n\n".join(rest), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if options.write is not None:
        table = "\n".join([tables.head(list(rows[0].turns)), *map(tables.line, rows)])
        page.write(options.write, "overhead", COMMAND, "\n\n".join([table, *rest]))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))

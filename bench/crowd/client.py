"""The limited process: one client, or a load generator in front of one proxy, through its waves.

``python -m bench.crowd.client '{"scenario": …}'`` prints one JSON line. The process that is
measured may have 2 GiB of private writable memory (RLIMIT_DATA: what torch and the allocator map,
touched or not) and 1,024 open files, the usual limit.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.crowd.asking import Ask, by_sdk, by_socket
from bench.crowd.questions import questions
from bench.crowd.wave import memory_mib, open_files, wave
from specroute.http.sockets import KEPT_ALIVE
from specroute.reference.bundled import draft_dir

DATA_BYTES = 2 * 2**30
FILES = 1024
PRICES = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
SETTLE_S = 2.0
OTHER_FILES = 8
"""What a server opens late: its log, a module."""


def limit() -> None:
    """Put this process under the limits."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))


def config(url: str) -> dict[str, Any]:
    """One model name for each way to answer."""

    def model(policy: Any, *drafts: str) -> dict[str, Any]:
        return {"targets": ["lab:target"], "drafts": list(drafts), "policy": policy}

    def fixed(method: str, k: int) -> dict[str, Any]:
        return {"preset": "fixed", "method": method, "num_speculative_tokens": k}

    timeouts = {"connect": 300, "first_token": 300, "stall": 300, "total": 600}
    return {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": url,
                "probe": False,
                "prices": PRICES,
                "timeouts": timeouts,
            }
        },
        "drafts": {"toy": {"kind": "local", "model": str(draft_dir()), "device": "cpu"}},
        "models": {
            "plain": {"targets": ["lab:target"]},
            "score": model(fixed("score", 4), "toy"),
            "latency": model("latency", "toy"),
            "balanced": model("balanced", "toy"),
            "ngram": model(fixed("score", 4), "ngram"),
            "ngram-latency": model("latency", "ngram"),
            "prefix": model(fixed("prefix", 8), "toy"),
        },
    }


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one process does."""

    model: str
    stream: bool
    proxy: bool
    requests: int
    tokens: int
    waves: int
    url: str
    cancel: bool = False
    """Half of the callers leave, in a wave of its own each turn."""
    chatty: bool = False
    name: str = ""
    """As a wave's line calls it."""


async def in_process(s: Scenario) -> dict[str, Any]:
    """The client in this process."""
    from specroute import AsyncSpecRoute

    limit()
    async with AsyncSpecRoute(config=config(s.url), max_retries=0) as client:
        problems = await client.warm_up()
        me = asyncio.current_task()
        found = await waves(s, by_sdk(client), memory_mib, lambda: left_in(client))
        found["problems"] = problems
        await asyncio.sleep(SETTLE_S)
        found["tasks_left"] = sorted(t.get_name() for t in asyncio.all_tasks() - {me})
        found["left"] = left_in(client)
    await asyncio.sleep(0.1)
    found["sockets_left"] = sockets()
    return found


def left_in(client: Any) -> dict[str, int]:
    """What the client's draft engine holds."""
    drafter = client.router.speculation.pool._drafters.get("toy")
    loaded = getattr(drafter, "_loaded", None)
    if loaded is None:
        return {"sessions": 0, "pages": 0, "most_pages": 0}
    pool = loaded.decoder.pool
    return {"sessions": len(loaded.caches._open), "pages": pool.used, "most_pages": pool.made}


def sockets() -> int:
    """Internet sockets that this process has open."""
    import psutil

    return len(psutil.Process().net_connections("inet"))


async def through_proxy(s: Scenario) -> dict[str, Any]:
    """``specroute serve`` in the limited process, asked over bare sockets from here."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        toml = Path(folder) / "specroute.toml"
        toml.write_text(_toml(config(s.url)))
        port = _free_port()
        command = [sys.executable, "-m", "specroute.cli", "serve", "--file", str(toml)]
        process = await asyncio.create_subprocess_exec(
            *command, "--port", str(port), preexec_fn=limit
        )
        try:
            url = f"http://127.0.0.1:{port}"
            await _until_up(url, process)
            pid = process.pid
            found = await waves(s, by_socket(url), lambda: memory_mib(pid), dict, pid)
            await asyncio.sleep(0.3)
            # Of the provider's connections some are kept for further requests.
            expected = found["files_before"] + KEPT_ALIVE + OTHER_FILES
            found["sockets_left"] = max(open_files(pid) - expected, 0)
        finally:
            process.terminate()
            await process.wait()
    return found


async def waves(
    s: Scenario,
    ask: Ask,
    memory: Callable[[], tuple[float, float]],
    left: Callable[[], dict[str, int]],
    pid: int | str = "self",
) -> dict[str, Any]:
    """Warm up, then take turns: plain, and the scenario's own model."""
    asked = questions(s.requests, s.tokens)
    rows: list[dict[str, Any]] = []
    models = ["plain"] if s.model == "plain" else ["plain", s.model]
    files_before = open_files(pid)
    rng = random.Random(5)
    for turn in range(s.waves + 1):
        for model in models if turn % 2 else reversed(models):
            found = await wave(ask, model, asked, stream=s.stream)
            row = {"turn": turn, "model": model, **found.as_dict()}
            if s.cancel and model == s.model and turn:
                await asyncio.sleep(0.1)
                row["leaving"] = await _leaving(s, ask, found.seconds, rng, left)
            if pid == "self":
                gc.collect()
                row["objects"] = len(gc.get_objects())
            row["rss_mib"], row["peak_mib"] = memory()
            row["left"] = left()
            rows.append(row)
            print(json.dumps(row) if s.chatty else said(s, row), file=sys.stderr, flush=True)
    return {"rows": rows, "files_before": files_before}


def said(s: Scenario, row: dict[str, Any]) -> str:
    """How a wave went, in a line."""
    methods = ", ".join(f"{m} {n}" for m, n in sorted(row["methods"].items()))
    at = f"wave {row['turn']} of {s.waves}" if row["turn"] else "warm-up"
    left = f"; half left in {row['leaving']['seconds']:.0f} s" if "leaving" in row else ""
    return (
        f"{s.name or s.model}: {at}, {row['model']}: {row['seconds']:.1f} s ({row['cpu_s']:.1f} s "
        f"of CPU), {row['errors']} errors, {row['wrong']} wrong ({methods}){left}"
    )


async def _leaving(
    s: Scenario,
    ask: Ask,
    seconds: float,
    rng: random.Random,
    left: Callable[[], dict[str, int]],
) -> dict[str, Any]:
    """Half of the callers go at a random moment."""
    asked = questions(s.requests, s.tokens)
    leave: list[float | None] = [None] * s.requests
    for number in rng.sample(range(s.requests), s.requests // 2):
        leave[number] = rng.uniform(0, 0.8 * seconds)
    found = await wave(ask, s.model, asked, stream=s.stream, leave=leave)
    await asyncio.sleep(0.1)
    return {**found.as_dict(), "left": left()}


def _toml(config: dict[str, Any]) -> str:
    """The config as a file: tables of scalars, lists and inline tables."""

    def value(v: Any) -> str:
        if isinstance(v, dict):
            return "{ " + ", ".join(f"{k} = {value(x)}" for k, x in v.items()) + " }"
        if isinstance(v, list):
            return "[" + ", ".join(map(value, v)) + "]"
        return json.dumps(v)

    lines = [f"version = {config['version']}"]
    for kind in ("providers", "drafts", "models"):
        for name, table in config[kind].items():
            lines.append(f"[{kind}.{name}]")
            lines += [f"{key} = {value(v)}" for key, v in table.items()]
    return "\n".join(lines) + "\n"


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _until_up(url: str, process: asyncio.subprocess.Process) -> None:
    import httpx2

    async with httpx2.AsyncClient() as client:
        for _ in range(600):
            if process.returncode is not None:
                break
            try:
                if (await client.get(f"{url}/healthz")).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.2)
    raise SystemExit("the proxy did not start")


def main() -> None:
    scenario = Scenario(**json.loads(sys.argv[1]))
    run = through_proxy if scenario.proxy else in_process
    print(json.dumps(asyncio.run(run(scenario))), flush=True)


if __name__ == "__main__":
    main()

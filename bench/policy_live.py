"""A policy on live traffic while the network changes: ``python bench/policy_live.py --png FILE``.

The reference server (TPOT 20 ms) answers two traffic classes in turn: *copies*, which repeat a text
of the prompt with few words changed, and *reworks*, which change every tenth word. A loopback relay
adds the network: R is 10 ms, and 400 ms from the middle of the run on. Nobody tells the policy.
Drafts are looked up in the prompt (``ngram``). Exits 1 if it doesn't speculate before the step, or
still speculates on reworks at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script

TPOT_S, NEAR_S, FAR_S = 0.02, 0.01, 0.4
WORDS, CHANGES = 90, {"copies": 0.02, "reworks": 0.1}
SYSTEM = {
    "copies": "Correct the text. Change as little as you can.",
    "reworks": "Rewrite the text in simpler words.",
}


class Relay:
    """A loopback relay that holds every byte back for half of ``rtt_s``, either way."""

    def __init__(self, port: int, rtt_s: float) -> None:
        self._port, self.rtt_s = port, rtt_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [self._forward(reader, back), self._forward(there, writer)]
        try:
            await asyncio.gather(*ways)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            back.close()
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        writing = asyncio.ensure_future(write())
        try:
            while data := await reader.read(65536):
                waiting.put_nowait((loop.time() + self.rtt_s / 2, data))
            waiting.put_nowait((loop.time() + self.rtt_s / 2, b""))
            await writing
        finally:
            writing.cancel()


@dataclass(frozen=True)
class Task:
    traffic: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Done:
    """One answered request."""

    traffic: str
    r_s: float
    method: str
    ms_per_token: float
    reason: str


def tasks(count: int) -> list[Task]:
    """Of both classes in turn."""
    rng = random.Random(11)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ane", "oli", "ure", "ick", "ast", "em")]
    found = []
    for n in range(count):
        traffic = ("copies", "reworks")[n % 2]
        text = [rng.choice(words) for _ in range(WORDS)]
        answer = [rng.choice(words) if rng.random() < CHANGES[traffic] else word for word in text]
        prompt = f"Text {n}: " + " ".join(text) + f". End of text {n}."
        found.append(Task(traffic, prompt, " ".join(answer)))
    return found


def script(todo: Sequence[Task]) -> Script:
    """The server that knows every answer."""
    answers = [{"when": f"End of text {n}.", "text": task.answer} for n, task in enumerate(todo)]
    return Script({"name": "target", "max_len": 16384, "answers": answers})


async def run(count: int, policy: str) -> list[Done]:
    todo = tasks(count)
    pace = f"tpot={TPOT_S}"
    found = []
    with ReferenceServer(script(todo), pace=pace, names=["target"]) as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        async with Relay(port, NEAR_S) as relay:
            config: dict[str, Any] = {
                "version": 1,
                "providers": {
                    "lab": {
                        "profile": "reference",
                        "base_url": f"http://127.0.0.1:{relay.port}/v1",
                    }
                },
                "models": {"m": {"targets": ["lab:target"], "drafts": ["ngram"], "policy": policy}},
            }
            async with AsyncSpecRoute(config=config) as client:
                for n, task in enumerate(todo):
                    if n == count // 2:
                        relay.rtt_s = FAR_S
                    found.append(await ask(client, task, relay.rtt_s))
                    if sys.stderr.isatty():
                        print(f"\r{n + 1} of {count}", end="", file=sys.stderr)
    return found


async def ask(client: AsyncSpecRoute, task: Task, r_s: float) -> Done:
    stream = await client.chat.completions.create(
        model="m",
        messages=[
            {"role": "system", "content": SYSTEM[task.traffic]},
            {"role": "user", "content": task.prompt},
        ],
        temperature=0,
        max_tokens=400,
        stream=True,
    )
    text = ""
    async for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    if text != task.answer:
        raise SystemExit(f"a wrong answer: {text[:80]!r}")
    told = report(stream)
    tokens = told.completion_tokens or 1
    return Done(
        task.traffic, r_s, told.method, (told.total_s or 0.0) / tokens * 1e3, told.plan_reason
    )


def draw(found: Sequence[Done], path: Path) -> None:
    """Milliseconds a token, request by request; hollow where it was plain."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.2), dpi=90)
    for traffic, colour in (("copies", "tab:green"), ("reworks", "tab:orange")):
        for plain in (False, True):
            at = [
                (n, d.ms_per_token)
                for n, d in enumerate(found)
                if d.traffic == traffic and (d.method == "plain") == plain
            ]
            axes.scatter(
                [n for n, _ in at],
                [ms for _, ms in at],
                s=16,
                edgecolors=colour,
                facecolors="none" if plain else colour,
                label=f"{traffic}, {'plain' if plain else 'speculated'}",
            )
    axes.axvline(len(found) / 2, color="grey", linestyle=":")
    axes.text(len(found) / 2, axes.get_ylim()[1], " R = 400 ms", va="top", color="grey")
    axes.axhline(TPOT_S * 1e3, color="grey", linewidth=0.5)
    axes.set_xlabel("request")
    axes.set_ylabel("ms per token")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--policy", default="latency")
    parser.add_argument("--png", type=Path)
    args = parser.parse_args()
    found = asyncio.run(run(args.requests, args.policy))
    half, tail = len(found) // 2, len(found) // 8
    holds = True
    for traffic in CHANGES:
        for name, part in (
            ("R 10 ms, after 1/8", found[tail:half]),
            ("R 400 ms, first 1/8", found[half : half + tail]),
            ("R 400 ms, the rest", found[half + tail :]),
        ):
            mine = [d for d in part if d.traffic == traffic]
            used = fmean(d.method != "plain" for d in mine)
            methods = ", ".join(sorted({d.method for d in mine}))
            pace = fmean(d.ms_per_token for d in mine)
            print(
                f"{traffic:8s} {name:20s} speculated {used:4.0%}  {pace:6.1f} ms/token  {methods}"
            )
            if name.startswith("R 10") and used < 0.8:
                holds = False
            if traffic == "reworks" and "rest" in name and used > 0.2:
                holds = False
    print(f"why, at last: {found[-1].reason}")
    print(
        "pass" if holds else "FAIL", " speculates while R is 10 ms, and stops on reworks at 400 ms"
    )
    if args.png:
        draw(found, args.png)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

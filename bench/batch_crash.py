"""A batch of 2,000 requests, killed five times at random points: what was asked for twice?

A loopback server counts how often each prompt arrives; ``specroute batch`` runs as a process of its
own and is ended with ``kill -9``. Run: ``python bench/batch_crash.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.loopback import Exchange, Loopback, completion  # noqa: E402


async def main(requests: int, at_once: int, kills: int, seed: int) -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    rng = random.Random(seed)
    arrived: Counter[str] = Counter()
    kill_at, reached = -1, asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        text = exchange.json["messages"][0]["content"]
        arrived[text] += 1
        if sum(arrived.values()) >= kill_at > 0:
            reached.set()
        await exchange.json_answer(completion(f"re: {text}"))

    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        toml = Path(folder) / "specroute.toml"
        source.write_text("".join(json.dumps(_line(i)) + "\n" for i in range(requests)))
        async with Loopback(handler) as server:
            toml.write_text(
                f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{server.url}"\n'
                '[models.smart]\ntargets = ["lab:toy"]\n'
            )
            command = [sys.executable, "-m", "specroute.cli", "batch", str(source), "-o", str(out)]
            command += ["-f", str(toml), "--concurrency", str(at_once), "-q"]
            print(f"{'run':>4} {'arrived':>8} {'of them new':>12} {'ended by':>10}")
            for run in range(kills + 1):
                before, known = sum(arrived.values()), len(arrived)
                left = requests - known
                reached.clear()
                kill_at = -1
                if run < kills:
                    kill_at = before + rng.randint(1, max(1, 2 * left // (kills + 1)))
                process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
                ended = asyncio.ensure_future(process.wait())
                told = asyncio.ensure_future(reached.wait())
                await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                status = await ended
                print(
                    f"{run + 1:>4} {sum(arrived.values()) - before:>8} {len(arrived) - known:>12} "
                    f"{'kill -9' if status < 0 else f'exit {status}':>10}",
                    flush=True,
                )
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    right = texts == [f"re: question {i}" for i in range(requests)]
    twice = sum(arrived.values()) - requests
    print(
        f"{len(lines)} results for {requests} requests, {'all' if right else 'NOT ALL'} right and "
        f"in order; {twice} asked for again, at most {kills * at_once} were under way at the kills"
    )
    return 0 if right and twice <= kills * at_once else 1


def _line(i: int) -> dict[str, object]:
    body = {"model": "smart", "messages": [{"role": "user", "content": f"question {i}"}]}
    return {
        "custom_id": f"r{i}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    sys.exit(asyncio.run(main(a.requests, a.at_once, a.kills, a.seed)))

"""Scoring rounds of many requests, in requests of their own and joined into shared ones.

    python bench/joint_rounds.py [--workers 1,32,200] [--rounds 12] [--repeats 5]
    python bench/joint_rounds.py --url URL --model NAME --profile vllm --tokenizer DIR

Each worker scores rounds of K tokens along a text of its own, one after another, as a request does;
nothing is drafted or judged. ``--draft-ms`` waits before each round, differently long for each
worker, so that they don't fall into step. The two ways take turns on the same texts with one client
each, and what they were told has to be the same. Without ``--url`` the reference server runs in a
process of its own with a scripted model, so that it costs next to nothing to be asked. CPU is the
client process's, and of the reference server its own, a round.
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
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SEPARATE, JOINED = "separate", "joined"
TEXT = (
    "The customer asks where order {n} is and whether the address can still be changed. The parcel "
    "left the warehouse on Monday, was scanned twice, and is due on Thursday before noon. Returns "
    "are free within thirty days; a label is in the box, and the refund comes two days after. "
)


@dataclass(slots=True)
class Seen:
    """What one way came to at one number of workers."""

    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)
    requests: int = 0
    rounds: int = 0


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="an API's base; default: the reference server")
    parser.add_argument("--model", default="joint")
    parser.add_argument("--profile", default="reference")
    parser.add_argument("--tokenizer", help="the model's folder, for servers that take ids")
    parser.add_argument("--dialect", help="score in this one, not the profile's first that works")
    parser.add_argument("--workers", default="1,32,200")
    parser.add_argument("--rounds", type=int, default=12, help="of each worker")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=200, help="tokens before the first round")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument(
        "--draft-ms", type=float, default=0, help="waited before a round, about as much on average"
    )
    a = parser.parse_args()
    return asyncio.run(_measure(a, a.url, None)) if a.url else _beside_reference(a)


def _spec() -> dict[str, Any]:
    letters = [chr(code) for code in range(32, 127)]
    return {
        "name": "joint",
        "vocabulary": [*letters, "</s>"],
        "eos": "</s>",
        "default": {letter: 1 + i % 7 for i, letter in enumerate(letters)},
        "rows": [
            {"after": [one], "next": {two: 5, "e": 1, "</s>": 0.01}}
            for one, two in pairwise(letters)
        ],
    }


def _beside_reference(a: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.json")
        script.write_text(json.dumps(_spec()), encoding="utf-8")
        # Without an access log, which its process would write and this one read.
        command = [sys.executable, "-m", "specroute.reference", "--until-eof"]
        command += ["--script", os.fspath(script), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if line.startswith("listening on "):
                    return asyncio.run(_measure(a, line.split()[2], server.pid))
            print("the reference server didn't start")
            return 1
        finally:
            server.communicate()


class _Letters:
    """The scripted model's vocabulary: a token a character."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from specroute.reference.script import Script

        self._script = Script(spec)
        self.fingerprint = "letters"
        self.size = self._script.size
        self.eos_ids = self.special_ids = frozenset(self._script.eos)
        self.end_id, self.bos_id = min(self.eos_ids), None
        self.tokens = tuple(
            None if t in self.special_ids else self._script.piece(t) for t in range(self.size)
        )

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._script.encode(text, False))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.tokens[t] or b"" for t in ids).decode("utf-8", "replace")


async def _measure(a: argparse.Namespace, url: str, pid: int | None) -> int:
    from specroute.book import Book
    from specroute.config import ProviderConfig, Timeouts
    from specroute.context import Committed, Prompt
    from specroute.http.client import HttpClient
    from specroute.http.deadline import Deadline
    from specroute.profiles import capabilities_for, load_profile
    from specroute.target.calibration import calibrate
    from specroute.target.scoring import score
    from specroute.target.target import Target
    from specroute.types import TargetRef
    from specroute.vocabulary import load_vocabulary

    limits = Timeouts(connect=10, first_token=120, stall=120, total=300, idle=0)
    provider = ProviderConfig("bench", a.profile, url)
    caps = replace(capabilities_for(load_profile(a.profile), None, a.model), joint_rounds=True)
    if a.dialect:
        caps = replace(caps, score=(a.dialect,))
    http = HttpClient(provider)
    vocabularies = [load_vocabulary(a.tokenizer)] if a.tokenizer else []
    if not a.tokenizer and not a.url:
        vocabularies = [_Letters(_spec())]
    target = Target(TargetRef("bench", a.model), http, caps)
    await calibrate(target, vocabularies, Book(), Deadline(limits))
    using = target.learned.dialect or target.learned.sampler
    vocabulary = target.learned.vocabulary
    if using is None or vocabulary is None:
        print(f"nothing to measure: {target.learned.reason or 'no vocabulary is known'}")
        return 1
    if using[0].name not in target.learned.joins:
        print(f"nothing to measure: {using[0].name} rounds can't share a request here")
        return 1
    counts = [int(n) for n in a.workers.split(",")]
    length = a.prompt + a.rounds * (a.k + 1)
    texts = []
    for n in range(max(counts)):
        ids: tuple[int, ...] = ()
        while len(ids) < length:
            ids = tuple(vocabulary.encode(TEXT.format(n=n) * (2 + len(ids))))
        texts.append(ids[:length])

    rng = random.Random(0)

    async def worker(ids: tuple[int, ...]) -> list[Any]:
        told = []
        for i in range(a.rounds):
            if a.draft_ms:
                await asyncio.sleep(rng.expovariate(1) * a.draft_ms / 1e3)
            at = a.prompt + i * (a.k + 1)
            view = await score(
                target, using, Prompt(None, None, ids[: a.prompt]),
                Committed("", ids[a.prompt : at]), ids[at : at + a.k],
                logprobs=1, sampling={"temperature": 0}, book=Book(), deadline=Deadline(limits),
            )  # fmt: skip
            told.append((view.positions, view.bonus))
        return told

    joins = set(target.learned.joins)
    seen = {(n, way): Seen() for n in counts for way in (SEPARATE, JOINED)}
    same = total = 0
    for n in counts:
        for turn in range(a.repeats + 1):
            answers: dict[str, list[Any]] = {}
            for way in (SEPARATE, JOINED) if turn % 2 else (JOINED, SEPARATE):
                target.learned.joins = joins if way == JOINED else set()
                before = (target.joint.requests, target.joint.rounds)
                cpu, there, began = time.process_time(), _cpu_of(pid), time.perf_counter()
                answers[way] = await asyncio.gather(*map(worker, texts[:n]))
                took, cpu = time.perf_counter() - began, time.process_time() - cpu
                if not turn:  # Warm-up.
                    continue
                rounds, found = n * a.rounds, seen[n, way]
                found.rates.append(rounds / took)
                found.cpu_ms.append(1e3 * cpu / rounds)
                found.server_ms.append(1e3 * (_cpu_of(pid) - there) / rounds)
                joint = target.joint
                alone = rounds - (joint.rounds - before[1])
                found.requests += alone + joint.requests - before[0]
                found.rounds += rounds
            total += n * a.rounds
            same += sum(
                x == y
                for one, two in zip(answers[SEPARATE], answers[JOINED], strict=True)
                for x, y in zip(one, two, strict=True)
            )
    await http.aclose()
    print(f"{using[0].name} by {using[1]}, prompts from {a.prompt} tokens, K = {a.k}")
    print("| rounds at once | way | rounds a request | rounds/s | CPU ms a round | server's |")
    print("|---|---|---|---|---|---|")
    for (n, way), found in seen.items():
        server = f"{statistics.median(found.server_ms):.2f}" if pid else "–"
        print(
            f"| {n} | {way} | {found.rounds / max(found.requests, 1):.1f} | "
            f"{statistics.median(found.rates):.0f} | {statistics.median(found.cpu_ms):.2f} | "
            f"{server} |"
        )
    for n in counts:
        one, two = seen[n, SEPARATE], seen[n, JOINED]
        ratios = [y / x for x, y in zip(one.rates, two.rates, strict=True)]
        spared = [y / x for x, y in zip(one.cpu_ms, two.cpu_ms, strict=True)]
        print(f"{n} at once, joined / separate: rounds/s {_spread(ratios)}, CPU {_spread(spared)}")
    print(f"{same} of {total} views the same both ways")
    if target.joint.off:
        print(f"joining was given up: {target.joint.off}")
    return 0


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _cpu_of(pid: int | None) -> float:
    """CPU seconds of another process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())

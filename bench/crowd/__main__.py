"""A thousand equal requests in flight at once, wave after wave, on two cores.

    python -m bench.crowd [SCENARIO …] [--requests 1000] [--waves N] [--tokens 8] [--json FILE]

A target that knows its answers (in a process of its own, paced) is asked by one client in a process
that may have 2 GiB of private memory and 1,024 open files; ``serve`` puts ``specroute serve`` under
the same memory limit and asks it over bare sockets. Waves of plain calls and of the scenario's own
take turns; the first of each is the warm-up. Without ``--waves`` an adaptive scenario has two or
three of them beside plain's, one with fixed rounds (which at this number cost more than they save)
one. All ten take about twenty minutes on two cores; each wave says on stderr how it went. Exits 1
where a bound doesn't hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.crowd.client import Scenario
from bench.crowd.judged import HEAD, row, verdicts
from bench.crowd.target import Target


@dataclass(frozen=True, slots=True)
class Kind:
    """A scenario's name for it, and what the client does."""

    model: str
    stream: bool = True
    proxy: bool = False
    cancel: bool = False
    adaptive: bool = False
    """Its policy chooses, so it must not be slower than plain."""
    waves: int = 2
    """After the warm-up."""


KINDS = {
    "plain": Kind("plain"),
    "plain-whole": Kind("plain", stream=False),
    "latency": Kind("latency", cancel=True, adaptive=True, waves=3),
    "balanced": Kind("balanced", adaptive=True),
    "ngram-latency": Kind("ngram-latency", stream=False, adaptive=True),
    "ngram": Kind("ngram", cancel=True, waves=1),
    "prefix": Kind("prefix", waves=1),
    "score": Kind("score", cancel=True, waves=1),
    "serve-plain": Kind("plain", proxy=True),
    "serve-balanced": Kind("balanced", proxy=True, adaptive=True),
}


def run(name: str, a: argparse.Namespace) -> dict[str, Any]:
    kind = KINDS[name]
    with Target(a.requests, a.tokens, a.pace) as target:
        scenario = Scenario(
            model=kind.model,
            stream=kind.stream,
            proxy=kind.proxy,
            cancel=kind.cancel,
            requests=a.requests,
            tokens=a.tokens,
            waves=a.waves or kind.waves,
            name=name,
            url=target.url,
            chatty=a.chatty,
        )
        done = subprocess.run(
            [sys.executable, "-m", "bench.crowd.client", json.dumps(asdict(scenario))],
            stdout=subprocess.PIPE,
            text=True,
        )
    if done.returncode or not done.stdout.strip():
        return {"failed": f"the client ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "proxy": kind.proxy}


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(KINDS))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--waves", type=int, help="after the warm-up; else by scenario")
    parser.add_argument("--tokens", type=int, default=8, help="of every answer")
    parser.add_argument("--pace", default="tpot=800ms", help="the target's")
    parser.add_argument("--json", type=Path, help="write everything here, too")
    parser.add_argument("--chatty", action="store_true", help="all of each wave, on stderr")
    options = parser.parse_args()
    for name in options.scenarios:
        if name not in KINDS:
            parser.error(f"unknown scenario {name!r}; expected {', '.join(KINDS)}")
    all_held, everything = True, {}
    print(
        f"{options.requests} at once, prompts of 160 and answers of {options.tokens} tokens, ",
        end="",
    )
    waves = f"{options.waves} waves after the warm-up, " if options.waves else ""
    print(f"{waves}target at {options.pace}, ", end="")
    print(f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} before)")
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    said: list[str] = []
    for name in options.scenarios or KINDS:
        found = everything[name] = run(name, options)
        if "failed" in found:
            said.append(f"FAIL {name}: {found['failed']}")
            all_held = False
            continue
        kind = KINDS[name]
        print("| " + " | ".join(row(name, kind.model, found)) + " |", flush=True)
        for bound, held in verdicts(kind.model, found, adaptive=kind.adaptive).items():
            said.append(f"{'pass' if held else 'FAIL'} {name}: {bound}")
            all_held = all_held and held
        if options.json is not None:
            options.json.write_text(json.dumps(everything, indent=1) + "\n")
    print("\n".join(["", *said]))
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main())

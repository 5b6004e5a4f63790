"""What speculation gains on closed APIs, in seconds and dollars, against the plain stream.

    python -m bench.closed [SECTION …] [--rounds N] [--json]

Each section plays one kind of API on the reference server (capabilities switched off, a simulated
pace) and lets plain and speculative calls take turns. Exits 1 where a bound doesn't hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any

from bench.closed.outcome import Outcome

SECTIONS = ("edit", "predict", "ends", "first_text", "cascade", "opinion", "hedge")
"""Modules of this folder, in the order in which they run. Each has ``TITLE`` and ``run(rounds)``,
a coroutine function that gives an :class:`Outcome`."""


def main() -> int:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7, help="turns a contender (default 7)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"unknown section {name!r}; expected {', '.join(SECTIONS)}")
    found: dict[str, Outcome] = {}
    for name in options.sections or SECTIONS:
        section: Any = import_module(f"bench.closed.{name}")
        found[name] = asyncio.run(section.run(options.rounds))
        if not options.json:
            show(section.TITLE, found[name])
    if options.json:
        print(json.dumps({name: outcome.as_dict() for name, outcome in found.items()}, indent=2))
    return 0 if all(outcome.holds for outcome in found.values()) else 1


def show(title: str, outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=170)
    table = Table(title=title)
    for column in outcome.rows[0] if outcome.rows else ():
        table.add_column(column)
    for row in outcome.rows:
        table.add_row(*row.values())
    console.print(table)
    for note in outcome.notes:
        console.print(note)
    for bound, held in outcome.held.items():
        console.print(f"{'held' if held else 'NOT held'}: {bound}")


if __name__ == "__main__":
    sys.exit(main())

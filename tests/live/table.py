"""``python tests/live/table.py [--json]``: what the last live runs saw, as markdown or JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / ".cache" / "live" / "results.json"


def of(pair: list[int]) -> str:
    return f"{pair[0]}/{pair[1]}" if pair[1] else "–"


def markdown(kept: dict[str, Any]) -> str:
    lines = [
        "| server | run | tokens | again | resumed | under load | steady prompts | speculative = plain | accepted / drafted | seconds, plain → speculative | labels |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [value for value in kept.values() if "steady" in value]
    lines += [
        f"| {r['server']} | {r['run']} | {r['tokens']} | {of(r['again'])} | {of(r['resumed'])} | {of(r['under_load'])} "
        f"| {r['steady']}/{r['prompts']} | {r['same']}/{r['prompts']} | {r['accepted']}/{r['drafted']} "
        f"| {r['plain_s']} → {r['speculative_s']} | {r['labels']} |"
        for r in rows
    ]
    lines.append("")
    for r in rows:
        lines += [f"- {r['server']}, {r['run']}: {d}" for d in r["differences"]]
    lines += [f"- {key}: {value['verdict']}" for key, value in kept.items() if "verdict" in value]
    return "\n".join([*lines, "", f"Measured on {', '.join(sorted({r['date'] for r in rows}))}."])


if __name__ == "__main__":
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if not kept:
        print("Nothing was measured yet: run make test-live")
    elif "--json" in sys.argv[1:]:
        print(json.dumps(kept, ensure_ascii=False, indent=2))
    else:
        print(markdown(kept))

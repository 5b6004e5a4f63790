"""What the live suite saw, kept in ``.cache/live/results.json``; ``table.py`` prints it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.live.agreement import Difference, Plain, Said

FILE = Path(__file__).resolve().parents[2] / ".cache" / "live" / "results.json"


@dataclass(frozen=True)
class Row:
    """One server, one way to speculate. Counts are (agreeing, of)."""

    server: str
    run: str
    prompts: int
    tokens: int
    again: tuple[int, int]
    resumed: tuple[int, int]
    under_load: tuple[int, int]
    steady: int
    """Prompts on which plain agreed with itself every time."""
    same: int
    """Prompts on which the speculative answer is the plain one."""
    labels: str
    drafted: int
    accepted: int
    plain_s: float
    speculative_s: float
    differences: list[str] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())


def row(
    server: str,
    run: str,
    plain: Sequence[Plain],
    said: Sequence[Said],
    differences: Sequence[Difference],
    tokens: int,
) -> Row:
    reports = [s.report for s in said if s.report is not None]

    def kind(name: str) -> tuple[int, int]:
        counts = [p.agreeing(name) for p in plain]
        return sum(a for a, _ in counts), sum(n for _, n in counts)

    methods = [f"{r.method} {r.exactness}" for r in reports]
    return Row(
        server,
        run,
        len(plain),
        tokens,
        kind("again"),
        kind("resumed"),
        kind("under load"),
        sum(p.steady for p in plain),
        sum(p.said.agrees(s) for p, s in zip(plain, said, strict=True)),
        ", ".join(f"{m} {methods.count(m)}" for m in dict.fromkeys(methods)),
        sum(r.drafted for r in reports),
        sum(r.accepted for r in reports),
        round(sum(p.said.seconds for p in plain), 1),
        round(sum(s.seconds for s in said), 1),
        [str(d) for d in differences],
    )


def keep(key: str, value: Any) -> None:
    """Replace what was kept under ``key``."""
    kept = load()
    kept[key] = value
    FILE.write_text(json.dumps(kept, ensure_ascii=False, indent=2))


def keep_row(value: Row) -> None:
    keep(f"{value.server}: {value.run}", asdict(value))


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}

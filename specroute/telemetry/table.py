"""The table of metrics in docs/telemetry.md, from their names.

``python -m specroute.telemetry.table docs/telemetry.md`` writes it into the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from specroute.telemetry.names import METRICS

KINDS = {"histogram": "histogram", "counter": "counter", "updown": "up-down counter"}


def metrics_table() -> str:
    """Markdown."""
    lines = ["| name | instrument | unit | meaning |", "|---|---|---|---|"]
    for name, (kind, unit, _, description) in METRICS.items():
        lines.append(f"| `{name}` | {KINDS[kind]} | {unit} | {description} |")
    return "\n".join(lines) + "\n"


def main(page: str) -> None:
    path = Path(page)
    text = path.read_text(encoding="utf-8")
    marks = r"(<!-- metrics: begin -->\n).*(<!-- metrics: end -->)"
    new = re.sub(marks, lambda m: m[1] + metrics_table() + m[2], text, flags=re.S)
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

"""What held of a scenario: its row of the table, and its pass and FAIL lines.

Pure: reads what ``client`` printed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MOST_UNEVEN = 4.0
"""p99 over p50 of equal requests."""
MOST_MIB = 2048.0
MOST_GROWTH = 1.05
"""Resident memory after the last wave over that after the first one past the warm-up."""
MOST_FILES = 1024
MOST_SLOWER = 1.1
"""Of an adaptive policy, wall-clock over plain's in the same run; waves on shared cores differ by
more than the aim of 1.0 could show."""
STANDING = {"measurements", "shadow acceptance"}
"""Tasks that live as long as the client."""
HEAD = (
    "scenario", "methods", "p50 s", "p99 s", "p99/p50", "TTFT p50", "TTFT p99", "errors",
    "wall/plain", "CPU/plain", "peak MiB", "MiB by wave", "files", "loop lag p99",
)  # fmt: skip


def after_warm_up(rows: Sequence[Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    return [r for r in rows if r["model"] == model and r["turn"]]


def ratio(rows: Sequence[Mapping[str, Any]], model: str, key: str) -> float | None:
    """The median over turns of a figure over plain's in the same turn; ``None`` for plain."""
    if model == "plain":
        return None
    plain = {r["turn"]: r[key] for r in after_warm_up(rows, "plain")}
    return statistics.median(r[key] / plain[r["turn"]] for r in after_warm_up(rows, model))


def uneven(rows: Sequence[Mapping[str, Any]], model: str) -> float:
    """The worst wave's p99 over p50."""
    return max(r["latency"]["p99"] / r["latency"]["p50"] for r in after_warm_up(rows, model))


def bad(rows: Sequence[Mapping[str, Any]]) -> int:
    """Errors and wrong answers of all waves, the warm-up and those that half left included."""
    waves = [*rows, *(r["leaving"] for r in rows if "leaving" in r)]
    return sum(r["errors"] + r["wrong"] for r in waves)


def row(name: str, model: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """The scenario's line of the table."""
    rows = found["rows"]
    own = after_warm_up(rows, model)

    def middle(*path: str) -> float:
        values = []
        for each in own:
            value: Any = each
            for key in path:
                value = value[key]
            values.append(value)
        return statistics.median(values)

    methods: dict[str, int] = {}
    for each in own:
        for method, count in each["methods"].items():
            methods[method] = methods.get(method, 0) + count
    total = sum(methods.values()) or 1
    shares = ", ".join(f"{m} {n / total:.0%}" for m, n in sorted(methods.items()))
    wall, cpu = ratio(rows, model, "seconds"), ratio(rows, model, "cpu_s")
    return (
        name,
        shares if set(methods) != {"unknown"} else "–",
        f"{middle('latency', 'p50'):.1f}",
        f"{middle('latency', 'p99'):.1f}",
        f"{uneven(rows, model):.2f}",
        f"{middle('ttft', 'p50'):.1f}",
        f"{middle('ttft', 'p99'):.1f}",
        str(bad(rows)),
        "–" if wall is None else f"{wall:.2f}",
        "–" if cpu is None or found["proxy"] else f"{cpu:.2f}",
        f"{rows[-1]['peak_mib']:.0f}",
        " ".join(f"{r['rss_mib']:.0f}" for r in rows if r["model"] == model),
        str(max(r["files"] for r in rows)),
        f"{max(r['lag_p99_s'] for r in own):.1f} s",
    )


def verdicts(model: str, found: Mapping[str, Any], *, adaptive: bool) -> dict[str, bool]:
    """Each bound, and whether it held."""
    rows = found["rows"]
    own = after_warm_up(rows, model)
    held = {
        "every answer right, no error": not bad(rows),
        f"p99/p50 below {MOST_UNEVEN:g}": uneven(rows, model) < MOST_UNEVEN,
        "peak memory within 2 GiB": rows[-1]["peak_mib"] <= MOST_MIB,
        f"at most {MOST_FILES} files": max(r["files"] for r in rows) <= MOST_FILES,
        "nothing left over": left(found),
    }
    if len(own) > 1:
        flat = own[-1]["rss_mib"] <= MOST_GROWTH * own[0]["rss_mib"]
        held["memory flat after warm-up"] = flat
    if adaptive:
        wall = ratio(rows, model, "seconds")
        held[f"at most {MOST_SLOWER:g}x of plain's wall-clock"] = (wall or 0.0) <= MOST_SLOWER
    leaving = [r["leaving"] for r in rows if "leaving" in r]
    if leaving:
        held["half left: the others are answered, nothing is held for those who left"] = all(
            not (w["errors"] or w["wrong"] or w["left"].get("sessions")) for w in leaving
        )
    return held


def left(found: Mapping[str, Any]) -> bool:
    """Whether no task, draft session, page in use or socket is left at the end."""
    tasks = set(found.get("tasks_left", ())) - STANDING
    held = found.get("left", {})
    return not (tasks or held.get("sessions") or held.get("pages") or found["sockets_left"])

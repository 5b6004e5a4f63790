"""``[telemetry]``: what an operator gets to see. Knows keys and types alone."""

from __future__ import annotations

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.values import TelemetryConfig


def read_telemetry(root: tables.Table, origins: Origins) -> TelemetryConfig:
    """The table, or its defaults."""
    table = root.table("telemetry")
    found = TelemetryConfig(
        traces=table.get("traces", tables.boolean, True),
        metrics=table.get("metrics", tables.boolean, True),
        log=table.get("log", tables.one_of("off", "debug", "info"), "debug"),
    )
    for key in ("traces", "metrics", "log"):
        origins.note(table, key)
    table.finish()
    return found

"""``limits``, ``[budgets]`` and ``[store]``: how much may be asked and spent, and who shares that.

Knows keys and types; deliberately not how any of it is kept.
"""

from __future__ import annotations

from typing import Any

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.values import StoreConfig

LIMITS = ("rpm", "tpm")


def read_limits(table: tables.Table, origins: Origins) -> dict[str, float]:
    """``providers.<name>.limits``."""
    found = {}
    for name in LIMITS:
        value = table.get(name, _per_minute, None)
        if value is not None:
            found[name] = value
            origins.note(table, name)
    table.finish()
    return found


def read_budgets(root: tables.Table, origins: Origins) -> float | None:
    """Dollars a day."""
    budgets = root.table("budgets")
    daily = budgets.table("daily")
    usd = daily.get("usd", usd_above_0, None)
    origins.note(daily, "usd")
    daily.finish()
    budgets.finish()
    return usd


def read_store(root: tables.Table, origins: Origins) -> StoreConfig:
    """``[store]``."""
    table = root.table("store")
    kind = table.get("kind", tables.one_of("memory", "file"), "memory")
    path = table.get("path", tables.text, None)
    if path is not None and kind != "file":
        table.problem("only for kind = 'file'; remove it", "path")
    for key in ("kind", "path"):
        origins.note(table, key)
    table.finish()
    return StoreConfig(kind, path)


def usd_above_0(value: Any) -> float:
    """An amount of money."""
    try:
        return tables.number(value, above=0)
    except tables.Expected:
        raise tables.Expected("an amount of dollars > 0") from None


def _per_minute(value: Any) -> float:
    try:
        return tables.number(value, at_least=1)
    except tables.Expected:
        raise tables.Expected("a number a minute, ≥ 1") from None

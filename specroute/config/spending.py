"""``limits``, ``[budgets]`` and ``[store]``: how much may be asked and spent, and who shares that.

Knows keys and types; deliberately not how any of it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.values import StoreConfig

LIMITS = ("rpm", "tpm")
_URL = "a URL like 'redis://host:6379/0' (or rediss://, unix://)"


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


def read_store(root: tables.Table, origins: Origins, environ: Mapping[str, str]) -> StoreConfig:
    """``[store]``."""
    table = root.table("store")
    kind = table.get("kind", tables.one_of("memory", "file", "redis"), "memory")
    path = table.get("path", tables.text, None)
    if path is not None and kind != "file":
        table.problem("only for kind = 'file'; remove it", "path")
    url = table.get("url", _store_url, None)
    variable = table.get("env_url", tables.text, None)
    measurements = table.get("measurements", tables.boolean, True)
    host = table.get("host", tables.text, None)
    for name in ("url", "env_url", "measurements", "host"):
        if name in table and kind != "redis":
            table.problem("only for kind = 'redis'; remove it", name)
    if kind == "redis":
        if "url" in table and "env_url" in table:
            table.problem("give url or env_url, not both", "env_url")
        elif variable is not None:
            url = environ.get(variable)
            if not url:
                table.problem(
                    f"the variable {variable} is not set: it should hold the URL", "env_url"
                )
            elif not _names_a_server(url):
                table.problem(
                    f"the variable {variable} should hold {_URL}, its value is not shown here",
                    "env_url",
                )
        elif "url" not in table:
            table.problem(
                "kind = 'redis' needs url = \"redis://host:6379/0\", or env_url with the NAME of a "
                "variable that holds it",
                "kind",
            )
    for key in ("kind", "path", "url", "env_url", "measurements", "host"):
        origins.note(table, key)
    table.finish()
    return StoreConfig(kind, path, url, measurements, host)


def _store_url(value: Any) -> str:
    text = tables.text(value)
    parts = urlsplit(text)
    asked = parse_qs(parts.query)
    if parts.password or parts.username or {"password", "username"} & set(asked):
        raise tables.Expected(
            "a URL without user name and password: name a variable that holds it in env_url",
            shown=False,
        )
    if not _names_a_server(text):
        raise tables.Expected(_URL)
    return text


def _names_a_server(url: str) -> bool:
    """Whether it is one that redis-py reads as it is meant: of a database that is no number it
    makes 0."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme == "unix":
        return bool(parts.path)
    number = parts.path.strip("/")
    return parts.scheme in ("redis", "rediss") and (not number or number.isdecimal())


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

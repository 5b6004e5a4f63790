"""``-c a.b=value`` laid over a config's tables.

Knows how such an argument is read; deliberately not which keys exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from specroute import tables
from specroute.errors import ConfigError


def apply(
    data: Mapping[str, Any], overrides: Iterable[str]
) -> tuple[dict[str, Any], frozenset[tuple[str, ...]]]:
    """A copy of ``data`` with each ``a.b=value`` laid over it, and the key paths that were set.

    Values are TOML; what isn't TOML is taken as a string, so quotes can be left out.
    :class:`ConfigError` lists every override that can't be read or laid.
    """
    laid = _copy(data)
    paths: set[tuple[str, ...]] = set()
    problems: list[str] = []
    for override in overrides:
        try:
            path, value = _split(override)
            _set(laid, path, value)
            paths.update(_leaves(path, value))
        except ValueError as wrong:
            problems.append(f"-c {_shown(override)}: {wrong}")
    if problems:
        raise ConfigError(problems)
    return laid, frozenset(paths)


def _split(override: str) -> tuple[tuple[str, ...], Any]:
    left, equals, right = override.partition("=")
    if not equals or not left.strip():
        raise ValueError("expected 'a.b=value'")
    try:
        nested: Any = tomllib.loads(f"{left.strip()} = 0")
    except tomllib.TOMLDecodeError:
        raise ValueError(
            f"expected a dotted key before '=', got {tables.show(left.strip())}; quote parts that "
            'have other characters than letters, digits, - and _: models."gpt-4.1".policy'
        ) from None
    path: list[str] = []
    while isinstance(nested, dict):
        ((key, nested),) = nested.items()
        path.append(key)
    return tuple(path), _value(right.strip())


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["v"] if len(read) == 1 else text


def _set(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for depth, key in enumerate(path[:-1], start=1):
        below = data.setdefault(key, {})
        if key == "policy" and isinstance(below, str):
            below = data[key] = {"preset": below}  # a preset's name is a table in short
        if not isinstance(below, dict):
            where = tables.dotted(path[:depth])
            raise ValueError(f"{where} is {tables.show(below, key)}, not a table")
        data = below
    data[path[-1]] = value


def _leaves(path: tuple[str, ...], value: Any) -> Iterable[tuple[str, ...]]:
    yield path
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves((*path, key), below)


def _copy(data: Any) -> Any:
    return {key: _copy(value) for key, value in data.items()} if isinstance(data, Mapping) else data


def _shown(override: str) -> str:
    left, _, _ = override.partition("=")
    return f"{left.strip()}=…"

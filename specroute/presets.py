"""Policy presets, read from ``policies/*.toml``: a policy's name and its parameters.

Knows which parameters a preset has, their types and their limits; deliberately not what any of
them does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from specroute import bundled_data, tables
from specroute.errors import ConfigError

Param = str | bool | int | float
PLUGIN = ":"
"""What tells ``module:Class`` from a preset's name."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One file of ``policies/``. A parameter's type is the type of its value in the file."""

    name: str
    policy: str
    """The policy that the parameters are for: ``fixed``, ``adaptive`` or a ``module:Class``."""
    summary: str
    params: Mapping[str, Param]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter → the words it may be."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Parameter → its smallest value,"""
    at_most: Mapping[str, float] = field(default_factory=dict)
    """and its largest, for those that aren't whole numbers."""

    @property
    def own(self) -> bool:
        """A class of the user's: what parameters it has, it alone knows."""
        return PLUGIN in self.policy

    def read(self, key: str, value: Any) -> Param:
        """``value`` for parameter ``key``; :class:`tables.Expected` where it doesn't fit."""
        if key not in self.params:
            return _param(value)
        default = self.params[key]
        if isinstance(default, bool):
            return tables.boolean(value)
        if isinstance(default, str):
            choices = self.choices.get(key)
            return tables.one_of(*choices)(value) if choices else tables.text(value)
        limit = self.at_least.get(key)
        if isinstance(default, int):
            return tables.integer(value, at_least=None if limit is None else int(limit))
        return tables.number(value, at_least=limit, at_most=self.at_most.get(key))


def preset_names() -> tuple[str, ...]:
    """The presets that ship."""
    return bundled_data.names("policies")


@cache
def load_preset(name: str) -> Preset:
    """Read ``policies/<name>.toml``; :class:`ConfigError` for an unknown name or a bad file.

    A ``module:Class`` is a preset of its own, whose one known parameter is ``exactness``.
    """
    if PLUGIN in name:
        labels = ("exact", "bounded", "heuristic")
        return Preset(name, name, "", {"exactness": "bounded"}, {"exactness": labels})
    known = preset_names()
    if name not in known:
        raise ConfigError(
            f"unknown policy preset {tables.show(name)}{tables.suggest(name, known)}; known: "
            f"{tables.listed(known)}"
        )
    problems: list[str] = []
    source = f"policies/{name}.toml"
    root = tables.Table(tomllib.loads(bundled_data.read("policies", name)), (), problems)
    policy = root.get("policy", tables.one_of("fixed", "adaptive"), "")
    summary = root.get("summary", tables.text, "")
    params = root.table("params")
    values = {key: params.get(key, _param, 0) for key in tuple(params.data)}
    choices = root.table("choices")
    words = {key: choices.get(key, tables.strings, ()) for key in tuple(choices.data)}
    limits = root.table("at_least")
    least = {key: limits.get(key, tables.number, 0.0) for key in tuple(limits.data)}
    limits = root.table("at_most")
    most = {key: limits.get(key, tables.number, 0.0) for key in tuple(limits.data)}
    root.finish()
    for key in {*words, *least, *most} - set(values):
        problems.append(f"limit for {key!r}, which is no parameter")
    if problems:
        raise ConfigError(problems, source)
    return Preset(name, policy, summary, values, words, least, most)


def _param(value: Any) -> Param:
    if not isinstance(value, str | bool | int | float):
        raise tables.Expected("a string, a number or true/false")
    return value

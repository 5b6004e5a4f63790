"""``policy = …``: a preset's name, or a table of parameters laid over a preset.

Knows how a policy is written and checks it against the preset's own parameters; deliberately not
what a policy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.values import Config, PolicyConfig
from specroute.errors import ConfigError
from specroute.presets import PLUGIN, Preset, load_preset, preset_names

NOT_YET: Mapping[str, str] = {
    "max_cost_usd": "a cost limit (max_cost_usd)",
}
"""Parameters of the design whose feature isn't there yet."""

FROM_FILE = "a policy of one's own (module:Class) is code: it can only be named in a config file"


def parse_policy(value: Any, where: str = "policy") -> PolicyConfig:
    """A preset's name, or a table over a preset; :class:`ConfigError` with every problem of it.

    For what a request or a caller brings: ``module:Class`` is refused.
    """
    problems: list[str] = []
    policy = read_policy(
        tables.Table({where: value}, (), problems), where, Origins(""), plugins=False
    )
    if problems:
        raise ConfigError(problems)
    return policy


def with_policy(config: Config, policy: Any) -> Config:
    """A copy of ``config`` in which every model has ``policy`` (as :func:`parse_policy` reads it).

    A client without models always makes plain calls, so there is nothing for it to change.
    """
    chosen = policy if isinstance(policy, PolicyConfig) else parse_policy(policy)
    models = {name: replace(model, policy=chosen) for name, model in config.models.items()}
    origins = dict(config.origins)
    for name in models:
        at = ("models", name, "policy")
        for word in (*load_preset(chosen.preset).params, "preset"):
            given = word == "preset" or word in chosen.params
            origin = "with_options(policy=…)" if given else f"preset {chosen.preset}"
            origins[tables.dotted((*at, word))] = origin
    return replace(config, models=models, origins=origins)


def read_policy(
    parent: tables.Table, key: str, origins: Origins, *, plugins: bool = True
) -> PolicyConfig:
    """The policy at ``key``; the default when absent, or wrong (and noted). ``plugins``: a
    ``module:Class`` may be named."""
    value = parent.raw(key)
    if isinstance(value, str):
        origins.note(parent, key)
        where = tables.dotted((*parent.path, key))
        origins.found[f"{where}.preset"] = origins.found.pop(where)
        preset = _preset(value, parent, key, plugins)
        return _laid_over(preset, tables.Table({}, (*parent.path, key), []), origins)
    if value is not None and not isinstance(value, Mapping):
        parent.refuse(tables.Expected("a preset's name or a table over a preset"), value, key)
        return PolicyConfig()
    table = parent.table(key)
    origins.note(table, "preset")
    name = table.get("preset", tables.text, PolicyConfig().preset)
    return _laid_over(_preset(name, table, "preset", plugins), table, origins)


def _laid_over(preset: Preset | None, table: tables.Table, origins: Origins) -> PolicyConfig:
    if preset is None:
        return PolicyConfig()
    params = {
        word: table.get(word, partial(preset.read, word), None)
        for word in (table.data if preset.own else preset.params)
        if word in table and word != "preset"
    }
    for word in preset.params:
        origins.note(table, word, f"preset {preset.name}")
    for word in table.data:
        if word == "preset" or word in preset.params or preset.own:
            continue
        if word in NOT_YET:
            table.problem(
                f"{NOT_YET[word]} is not available in this version of specroute; remove it", word
            )
        else:
            table.problem(
                f"preset {preset.name!r} has no parameter of this name"
                f"{tables.suggest(word, preset.params)}; it has: {tables.listed(preset.params)}",
                word,
            )
    return PolicyConfig(preset.name, params)


def _preset(name: str, table: tables.Table, key: str, plugins: bool) -> Preset | None:
    known = preset_names()
    if name in known:
        return load_preset(name)
    if PLUGIN in name:
        module, _, made = name.partition(PLUGIN)
        if not plugins:
            table.problem(FROM_FILE, key)
        elif not (all(map(str.isidentifier, module.split("."))) and made.isidentifier()):
            table.problem(f"expected a preset's name or 'module:Class', got {name!r}", key)
        else:
            return load_preset(name)
        return None
    table.problem(
        f"unknown policy preset {tables.show(name)}{tables.suggest(name, known)}; known: "
        f"{tables.listed(known)}, or 'module:Class'",
        key,
    )
    return None

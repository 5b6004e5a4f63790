"""A config's tables checked and made into frozen values, all problems at once.

Knows the keys of the whole file and those that come with a later version; deliberately nothing of
where the tables come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from specroute import tables
from specroute.config.observing import read_record, read_shadow
from specroute.config.origins import Origins
from specroute.config.policy import read_policy
from specroute.config.provider import (
    bundled_provider,
    missing_provider,
    parse_provider,
)
from specroute.config.spending import read_budgets, read_store, usd_above_0
from specroute.config.telemetry import read_telemetry
from specroute.config.values import (
    FALLBACK_ON,
    Config,
    DraftConfig,
    ModelConfig,
    ProviderConfig,
)
from specroute.errors import ConfigError
from specroute.types import TargetRef

NOT_YET: Mapping[str, Mapping[str, str]] = {
    "": {
        "exactness": "an exactness floor outside a policy's parameters (exactness)",
    },
    "models": {
        "exactness": "an exactness floor outside a policy's parameters (exactness)",
    },
}
"""Keys of the design whose feature isn't there yet: table → key → what it would do."""

_DEVICE = re.compile(r"(auto|cpu|cuda(:\d+)?)\Z")
_MEMORY = re.compile(r"\d+(\.\d+)?\s?(MB|GB|MiB|GiB)\Z")
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_LOCAL_KEYS = ("device", "dtype", "max_memory", "min_probability")


def parse(
    data: Mapping[str, Any],
    source: str = "argument",
    environ: Mapping[str, str] | None = None,
    *,
    overridden: frozenset[tuple[str, ...]] = frozenset(),
    versioned: bool = False,
) -> Config:
    """Check ``data`` and fill in defaults; one :class:`ConfigError` lists every problem.

    ``source`` is the name that messages and origins show. ``overridden`` are the key paths that
    ``-c`` set. ``versioned``: ``version = 1`` must be there, as in every file.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    root = tables.Table(data, (), problems)
    origins = Origins(source, overridden)
    _version(root, versioned)
    origins.note(root, "version")
    providers = {
        name: parse_provider(name, table, origins, environ)
        for name, table in _named(root, "providers")
    }
    drafts = {
        name: _draft(name, table, origins, providers, environ)
        for name, table in _named(root, "drafts")
    }
    if "ngram" not in drafts:
        drafts["ngram"] = DraftConfig(name="ngram", kind="ngram")
    models = {
        name: _model(name, table, origins, providers, drafts, environ)
        for name, table in _named(root, "models")
    }
    default = root.get("default_provider", tables.text, None)
    if default is not None:
        _use(default, root, ("default_provider",), providers, environ)
        origins.note(root, "default_provider")
    record, shadow = read_record(root, origins), read_shadow(root, origins)
    daily_usd = read_budgets(root, origins)
    store = read_store(root, origins, environ)
    telemetry = read_telemetry(root, origins)
    root.finish(NOT_YET[""])
    if problems:
        raise ConfigError([_scrub(problem, environ) for problem in problems], source)
    return Config(
        providers=providers,
        models=models,
        drafts=drafts,
        default_provider=default,
        record=record,
        shadow=shadow,
        daily_usd=daily_usd,
        store=store,
        telemetry=telemetry,
        source=source,
        origins=origins.found,
    )


def _named(root: tables.Table, key: str) -> Iterator[tuple[str, tables.Table]]:
    for name, table in root.table(key).tables():
        if not name.strip():
            table.problem("expected a name that is not empty")
        yield name, table


def _version(root: tables.Table, required: bool) -> None:
    version = root.raw("version")
    if version is None and "version" not in root:
        if required:
            root.problem("missing; add `version = 1` as the first line", "version")
    elif version != 1 or isinstance(version, bool):
        root.problem(
            f"expected 1, the only version this specroute reads, got {tables.show(version)}",
            "version",
        )


def _use(
    name: str,
    table: tables.Table,
    keys: tuple[str, ...],
    providers: dict[str, ProviderConfig],
    environ: Mapping[str, str],
) -> None:
    """Bring in a bundled provider that is used without being declared, or note that none is."""
    if name in providers:
        return
    bundled = bundled_provider(name, environ)
    if bundled is None:
        table.problem(missing_provider(name, providers), *keys)
    else:
        providers[name] = bundled


def _draft(
    name: str,
    table: tables.Table,
    origins: Origins,
    providers: dict[str, ProviderConfig],
    environ: Mapping[str, str],
) -> DraftConfig:
    default_kind = "ngram" if name == "ngram" else ""
    kind = table.get("kind", tables.one_of("local", "ngram", "remote"), default_kind)
    if not kind and table.lacks("kind"):
        table.problem("required: one of 'local', 'ngram', 'remote'", "kind")
    draft = DraftConfig(
        name=name,
        kind=kind,
        model=table.get("model", tables.text, None),
        provider=table.get("provider", tables.text, None),
        device=table.get("device", _device, "auto"),
        dtype=table.get("dtype", tables.one_of(*_DTYPES), "auto"),
        temperature=table.get("temperature", _temperature, None),
        max_memory=table.get("max_memory", _memory, None),
        min_probability=table.get("min_probability", _probability, 0.0),
    )
    if kind in ("local", "remote") and "model" not in table:
        table.problem(f"required for kind = {kind!r}", "model")
    if kind == "remote" and "provider" not in table:
        table.problem("required for kind = 'remote': a configured provider", "provider")
    if draft.provider and kind == "remote":
        _use(draft.provider, table, ("provider",), providers, environ)
    for key, kinds in (
        ("model", ("local", "remote")),
        ("provider", ("remote",)),
        ("temperature", ("local", "remote")),
        *((key, ("local",)) for key in _LOCAL_KEYS),
    ):
        if kind and kind not in kinds and key in table:
            table.problem(f"only for kind = {' or '.join(map(repr, kinds))}; remove it", key)
        elif kind in kinds:
            origins.note(table, key)
    origins.note(table, "kind")
    table.finish()
    return draft


def _model(
    name: str,
    table: tables.Table,
    origins: Origins,
    providers: dict[str, ProviderConfig],
    drafts: Mapping[str, DraftConfig],
    environ: Mapping[str, str],
) -> ModelConfig:
    targets: list[TargetRef] = []
    words = table.get("targets", tables.strings, None)
    for index, word in enumerate(words or ()):
        at = f"targets[{index}]"
        try:
            target = TargetRef.parse(word)
        except ValueError:
            table.problem(f"expected 'provider:model', got {tables.show(word)}", at)
            continue
        _use(target.provider, table, (at,), providers, environ)
        if target in targets:
            table.problem(f"{tables.show(word)} is listed twice; a target is retried anyway", at)
        targets.append(target)
    if table.lacks("targets") or words == ():
        table.problem('required: at least one "provider:model"', "targets")
    names = table.get("drafts", tables.strings, ())
    for index, word in enumerate(names):
        if word not in drafts:
            table.problem(
                f"unknown draft {tables.show(word)}{tables.suggest(word, drafts)}; "
                f"known: {tables.listed(drafts)}",
                f"drafts[{index}]",
            )
    model = ModelConfig(
        name=name,
        targets=tuple(targets),
        drafts=names,
        policy=read_policy(table, "policy", origins),
        tokenizer=table.get("tokenizer", tables.text, None),
        fallback_on=table.get("fallback_on", _faults, FALLBACK_ON),
        interchangeable=table.get("interchangeable", tables.boolean, False),
        max_cost_usd=table.get("max_cost_usd", usd_above_0, None),
    )
    keys = ("targets", "drafts", "tokenizer", "fallback_on", "interchangeable", "max_cost_usd")
    for key in keys:
        origins.note(table, key)
    table.finish(NOT_YET["models"])
    return model


def _faults(value: Any) -> tuple[str, ...]:
    words = tables.strings(value)
    for word in words:
        if word not in FALLBACK_ON:
            raise tables.Expected(
                f"a list of {tables.listed(FALLBACK_ON)}", f"{tables.show(word)} is none of them"
            )
    return words


def _device(value: Any) -> str:
    if not isinstance(value, str) or not _DEVICE.match(value):
        raise tables.Expected("'auto', 'cpu', 'cuda' or 'cuda:<n>'")
    return value


def _memory(value: Any) -> str:
    if not isinstance(value, str) or not _MEMORY.match(value):
        raise tables.Expected("an amount like '4GiB' or '500MB'")
    return value


def _temperature(value: Any) -> float:
    return tables.number(value, at_least=0)


def _probability(value: Any) -> float:
    return tables.number(value, at_least=0, at_most=1)


def _scrub(problem: str, environ: Mapping[str, str]) -> str:
    """Whatever a message quotes, the environment's own secrets are never part of it."""
    for name, value in environ.items():
        if tables.secret_name(name) and len(value) >= 6 and value in problem:
            problem = problem.replace(value, "***")
    return problem

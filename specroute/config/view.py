"""A config as it takes effect, for people: every value, redacted, and where it came from.

Knows what must not be shown; deliberately not how a terminal shows the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from specroute import tables
from specroute.config.values import Config, DraftConfig, ModelConfig, ProviderConfig
from specroute.presets import load_preset

HIDDEN = "***"


def effective(config: Config) -> dict[str, Any]:
    """The config with all defaults filled in, JSON-ready; keys and headers are never in it."""
    shown: dict[str, Any] = {"version": 1}
    if config.default_provider is not None:
        shown["default_provider"] = config.default_provider
    shown["providers"] = {p.name: _provider(p) for p in config.providers.values()}
    shown["drafts"] = {draft.name: _draft(draft) for draft in config.drafts.values()}
    if config.daily_usd is not None:
        shown["budgets"] = {"daily": {"usd": config.daily_usd}}
    store = config.store
    shown["store"] = {"kind": store.kind, **({"path": store.path} if store.path else {})}
    if store.kind == "redis":
        host = {"host": store.host} if store.host else {}
        shown["store"] |= {"url": HIDDEN, "measurements": store.measurements, **host}
    shown["models"] = {model.name: _model(model) for model in config.models.values()}
    shown["telemetry"] = asdict(config.telemetry)
    if config.record is not None:
        shown["record"] = asdict(config.record)
    if any(model.drafts for model in config.models.values()):
        shown["shadow"] = asdict(config.shadow)
    return shown


def rows(config: Config) -> Iterator[tuple[str, str, str]]:
    """(dotted key, value as TOML would write it, where it came from), in the file's order."""
    for path, value in _leaves((), effective(config)):
        yield tables.dotted(path), _text(value), _origin(config, path)


def _provider(provider: ProviderConfig) -> dict[str, Any]:
    if provider.api_key is not None:
        key = "set"
    else:
        key = "none" if provider.env_key is None else f"missing: {provider.env_key} is not set"
    return {
        "profile": provider.profile,
        # Some gateways want their key in the path.
        "base_url": HIDDEN if tables.looks_secret(provider.base_url) else provider.base_url,
        "env_key": provider.env_key or "",
        "key": key,
        "headers": dict.fromkeys(provider.headers, HIDDEN),
        "query": {
            name: HIDDEN if tables.secret_name(name) or tables.looks_secret(value) else value
            for name, value in provider.query.items()
        },
        "timeouts": asdict(provider.timeouts),
        "capabilities": _plain(provider.capabilities),
        "prices": _plain(provider.prices),
        "probe": provider.probe,
        "limits": dict(provider.limits),
    }


def _draft(draft: DraftConfig) -> dict[str, Any]:
    known = {"kind": draft.kind, "model": draft.model, "provider": draft.provider}
    if draft.kind == "local":
        known |= {"device": draft.device, "dtype": draft.dtype, "max_memory": draft.max_memory}
    shown: dict[str, Any] = {key: value for key, value in known.items() if value is not None}
    if draft.min_probability:
        shown["min_probability"] = draft.min_probability
    if draft.temperature is not None:
        shown["temperature"] = draft.temperature
    return shown


def _model(model: ModelConfig) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "targets": [str(target) for target in model.targets],
        "drafts": list(model.drafts),
        "policy": {
            "preset": model.policy.preset,
            **load_preset(model.policy.preset).params,
            **model.policy.params,
        },
    }
    if model.tokenizer is not None:
        shown["tokenizer"] = model.tokenizer
    if model.max_cost_usd is not None:
        shown["max_cost_usd"] = model.max_cost_usd
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(below) for key, below in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves((*path, key), below)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _origin(config: Config, path: tuple[str, ...]) -> str:
    found = config.origins.get(tables.dotted(path))
    if found is not None:
        return found
    if len(path) == 3 and path[0] == "providers":
        if path[2] == "key":
            return "environment" if config.providers[path[1]].api_key else "default"
        if not config.providers[path[1]].declared:
            return f"profile {path[1]}"
    return "default"

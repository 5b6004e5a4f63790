"""Which config a new client has: the argument's, a file's, or that of a plain client.

Knows what openai's constructor may be given and what that means beside a config; deliberately not
what a config holds. Problems come as errors that are also openai's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import openai
from openai import NotGiven

from specroute import errors, openai_errors
from specroute.config import Config, find, load, plain_config
from specroute.router import Router

PLACEHOLDER_URL = "https://specroute.invalid/v1"

ConfigSource = Config | Mapping[str, Any] | str | os.PathLike[str]

T = TypeVar("T")

PLAIN_ARGUMENTS = frozenset(
    {
        "api_key",
        "admin_api_key",
        "workload_identity",
        "provider",
        "base_url",
        "data_residency",
    }
)
"""Those of openai's arguments that say where a plain client's requests go, or as whom."""


def config_for(source: ConfigSource | None, given: list[str], client: str) -> Config | None:
    """The config of a new client; ``None``: a plain one."""
    if source is not None:
        if given:
            raise openai_errors.ConfigError(
                f"{client}(config=…, {given[0]}=…): the config says where requests go and "
                f"with which key; give either the one or {given[0]}"
            )
        if isinstance(source, Config):
            return source
        return load_config(source)
    if given:
        return None
    path = translated(find)
    return None if path is None else load_config(path)


def config_of_plain(base_url: str, api_key: str | None) -> Config:
    """The config of a plain client. openai's constructor has seen to its credentials, which need
    not be a key that is known here (a function, an admin key, an identity)."""
    config = translated(lambda: plain_config(base_url, api_key))
    providers = {n: replace(p, env_key=None) for n, p in config.providers.items()}
    return replace(config, providers=providers)


def elsewhere(router: Router, base_url: str | httpx2.URL | NotGiven | None) -> bool:
    """Whether a copy with ``base_url`` calls another address than the plain client it is of."""
    if base_url is None or isinstance(base_url, NotGiven):
        return False
    known = next(iter(router.config.providers.values())).base_url
    return str(base_url).rstrip("/") != known


def located(source: ConfigSource | None) -> Path | Mapping[str, Any] | None:
    """Where a config comes from, to be read again; ``None``: it is a value, or there is no file."""
    if isinstance(source, Config):
        return None
    if isinstance(source, Mapping):
        return source
    path = translated(find) if source is None else Path(source).expanduser()
    return None if path is None else path.absolute()


def load_config(source: Mapping[str, Any] | str | os.PathLike[str] | None) -> Config:
    if not (source is None or isinstance(source, Mapping | str | os.PathLike)):
        raise openai_errors.ConfigError(
            "config must be a path, a dict of the file's structure or a specroute.Config, got "
            f"{type(source).__name__}"
        )
    path = source if source is None or isinstance(source, Mapping) else Path(source)
    return translated(lambda: load(path))


def translated(make: Callable[[], T]) -> T:
    try:
        return make()
    except errors.ConfigError as error:
        if isinstance(error, openai.OpenAIError):
            raise
        raise openai_errors.ConfigError(error.problems, error.source) from None


def shown_base_url(config: Config) -> str:
    """What ``client.base_url`` shows: the default provider's, else the only sensible other."""
    name = config.default_provider
    if name is None and config.models:
        name = next(iter(config.models.values())).targets[0].provider
    if name is None and config.providers:
        name = next(iter(config.providers))
    provider = config.providers.get(name) if name is not None else None
    return PLACEHOLDER_URL if provider is None else provider.base_url

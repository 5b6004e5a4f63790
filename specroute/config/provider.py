"""``[providers.<name>]``: one table, or a bundled profile used without one.

Knows addresses, keys, deadlines and overrides; deliberately not what a provider can do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.spending import read_limits
from specroute.config.values import Config, ProviderConfig, Timeouts
from specroute.errors import ConfigError
from specroute.profiles import (
    Profile,
    load_profile,
    profile_at,
    profile_names,
    read_capabilities,
)

PRICES = ("input", "output", "cached_input")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_ENDPOINTS = ("/chat/completions", "/completions", "/responses", "/embeddings")
_INLINE_KEYS = ("api_key", "apikey", "api-key", "key", "token")


def parse_provider(
    name: str, table: tables.Table, origins: Origins, environ: Mapping[str, str]
) -> ProviderConfig:
    """One declared provider; what is wrong goes to the table's problems."""
    if ":" in name:
        table.problem("a provider's name can't hold ':', which ends it in 'provider:model'")
    for key in _INLINE_KEYS:
        if key in table:
            table.raw(key)
            table.problem(
                "keys don't belong into a config; put it into an environment variable and name "
                'that: env_key = "…_API_KEY"',
                key,
            )
    given = table.get("base_url", base_url, None)
    profile, how = _profile(name, table, given)
    origins.note(table, "profile", how)
    address = given or profile.base_url or ""
    if not address and table.lacks("base_url"):
        table.problem(
            f"required: profile {profile.name!r} has no address of its own; give the base, "
            'as in base_url = "http://10.0.0.5:8000/v1"',
            "base_url",
        )
    origins.note(table, "base_url", f"profile {profile.name}")
    env_key = _env_key(table, profile, address, origins)
    headers = table.get("headers", _headers, {})
    query = table.get("query", tables.string_table, {})
    capabilities = table.table("capabilities")
    prices = table.table("prices")
    timeouts, timeouts_set = _timeouts(table.table("timeouts"), origins)
    limits = read_limits(table.table("limits"), origins)
    for part in (table.table("headers"), table.table("query"), capabilities, prices):
        origins.note_below(part) if part.data else None
    probe = table.get("probe", tables.boolean, True)
    table.finish()
    return ProviderConfig(
        name=name,
        profile=profile.name,
        base_url=address,
        env_key=env_key,
        api_key=_key(table, env_key, environ),
        headers=headers,
        query=query,
        timeouts=timeouts,
        timeouts_set=timeouts_set,
        capabilities=read_capabilities(capabilities),
        prices=_prices(prices),
        probe=probe,
        limits=limits,
    )


def bundled_provider(name: str, environ: Mapping[str, str]) -> ProviderConfig | None:
    """A bundled profile as a provider; ``None`` where there is none or it has no address.

    A missing variable is no error here: see :meth:`ProviderConfig.key`.
    """
    if name not in profile_names():
        return None
    profile = load_profile(name)
    if profile.base_url is None:
        return None
    return ProviderConfig(
        name=name,
        profile=name,
        base_url=profile.base_url,
        env_key=profile.env_key,
        api_key=_clean_key(environ.get(profile.env_key or "")),
        declared=False,
    )


def base_url(value: Any) -> str:
    """An ``http(s)://host[:port][/path]`` without a trailing slash; the path stays as given."""
    value = tables.text(value).strip()
    what = "a base_url like 'https://host/v1'"
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise tables.Expected(what, "its host or port can't be read", shown=False) from None
    if "@" in parts.netloc or parts.username is not None:
        raise tables.Expected(
            what, "it holds a user name or password; use env_key or headers instead", shown=False
        )
    if parts.scheme not in ("http", "https"):
        bare = not re.match(r"[a-z]+://", value)
        raise tables.Expected(
            what, f"write 'http://{value}' or 'https://{value}'" if bare else "use http or https"
        )
    if not parts.hostname or port == 0 or re.search(r"\s", value):
        raise tables.Expected(what)
    if parts.query or parts.fragment:
        raise tables.Expected(what, "put what follows '?' into `query`", shown=False)
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        if path.endswith(endpoint):
            raise tables.Expected(what, f"leave out {endpoint!r}; the client adds it")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _profile(name: str, table: tables.Table, given: str | None) -> tuple[Profile, str]:
    known = profile_names()
    if "profile" in table:
        word = table.get("profile", tables.text, None)
        if word in known:
            return load_profile(str(word)), ""
        if word is not None:
            table.problem(
                f"unknown profile {tables.show(word)}{tables.suggest(word, known)}; "
                f"known: {tables.listed(known)}",
                "profile",
            )
        return load_profile("generic"), ""
    if name in known:
        return load_profile(name), "the provider's name"
    return load_profile(profile_at(given) if given else "generic"), "matched by host"


def _env_key(table: tables.Table, profile: Profile, address: str, origins: Origins) -> str | None:
    origins.note(table, "env_key", f"profile {profile.name}" if profile.env_key else "default")
    if "env_key" in table:
        value = table.raw("env_key")
        if value == "":
            return None
        if not isinstance(value, str) or not _VARIABLE.match(value) or tables.looks_secret(value):
            table.problem(
                'expected the NAME of an environment variable (letters, digits, _), or "" for '
                "no key; the value given isn't one and is not shown, in case it is the key itself",
                "env_key",
            )
            return None
        return value
    if profile.env_key is None or not address or profile.owns(address):
        return profile.env_key if address else None
    table.problem(
        f"{profile.env_key} belongs to {profile.base_url or profile.title} and isn't sent to "
        f'{urlsplit(address).netloc} unless this table says so: env_key = "{profile.env_key}", '
        'another variable, or env_key = "" for no key',
        "env_key",
    )
    return None


def _key(table: tables.Table, env_key: str | None, environ: Mapping[str, str]) -> str | None:
    if env_key is None:
        return None
    raw = environ.get(env_key)
    key = _clean_key(raw)
    if key is None:
        state = "not set" if raw is None else "empty, or holds spaces or control characters"
        table.problem(f"the environment variable {env_key} is {state}", "env_key")
    return key


def _clean_key(value: str | None) -> str | None:
    key = (value or "").strip()
    return key if key and key.isprintable() and " " not in key else None


def _timeouts(table: tables.Table, origins: Origins) -> tuple[Timeouts, frozenset[str]]:
    names = [f.name for f in fields(Timeouts)]
    found: dict[str, float] = {}
    for name in names:
        read = _seconds_or_never if name == "idle" else _seconds
        seconds = table.get(name, read, None)
        origins.note(table, name)
        if seconds is not None:
            found[name] = seconds
    table.finish()
    return Timeouts(**found), frozenset(found)


def _seconds(value: Any) -> float:
    try:
        return tables.number(value, above=0)
    except tables.Expected:
        raise tables.Expected("a number of seconds > 0") from None


def _seconds_or_never(value: Any) -> float:
    try:
        return tables.number(value, at_least=0)
    except tables.Expected:
        raise tables.Expected("a number of seconds, or 0 for never") from None


def _usd(value: Any) -> float:
    try:
        return tables.number(value, at_least=0)
    except tables.Expected:
        raise tables.Expected("USD per million tokens, a number ≥ 0") from None


def _headers(value: Any) -> dict[str, str]:
    headers = tables.string_table(value)
    for name, text in headers.items():
        if not _HEADER.match(name) or not text.isascii() or not text.isprintable():
            raise tables.Expected(
                "HTTP headers: names of letters, digits and -, printable ASCII values", shown=False
            )
    return headers


def _prices(table: tables.Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.data.items():
        if isinstance(value, Mapping):
            model = table.table(name)
            found[name] = {k: model.get(k, _usd, None) for k in PRICES if k in model}
            model.finish() if set(model.data) <= set(PRICES) else _finish_prices(model)
        elif name in PRICES:
            found[name] = table.get(name, _usd, None)
        else:
            table.problem(
                f"expected {tables.listed(PRICES)}, or a table for a model, got "
                f"{tables.show(value)}{tables.suggest(name, PRICES)}",
                name,
            )
    return found


def _finish_prices(model: tables.Table) -> None:
    for key in PRICES:
        model.raw(key)
    model.finish()


def missing_provider(name: str, declared: Mapping[str, Any]) -> str:
    """Why ``name`` is no provider, and what to do."""
    if name in profile_names():
        return (
            f"profile {name!r} has no address of its own; declare [providers.{name}] with a "
            "base_url"
        )
    bundled = [p for p in profile_names() if load_profile(p).base_url]
    known = [*declared, *(p for p in bundled if p not in declared)]
    return (
        f"unknown provider {tables.show(name)}{tables.suggest(name, known)}; known: "
        f"{tables.listed(known)}"
    )


def provider_for(
    config: Config, name: str, environ: Mapping[str, str] | None = None
) -> ProviderConfig:
    """The provider of that name: declared, used in the config, or bundled (read when asked for).

    :class:`ConfigError` lists the known ones when there is none. It is also raised where the key
    is missing, which for undeclared providers is found out only here.
    """
    environ = os.environ if environ is None else environ
    found = config.providers.get(name) or bundled_provider(name, environ)
    if found is None:
        raise ConfigError(missing_provider(name, config.providers))
    found.key()
    return found

"""The config of a client that has no file: ``AsyncSpecRoute(base_url=…, api_key=…)``.

Knows openai's two environment variables; deliberately nothing of files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from specroute import tables
from specroute.config.provider import base_url as read_base_url
from specroute.config.values import Config, ProviderConfig, Timeouts
from specroute.errors import ConfigError
from specroute.profiles import load_profile, profile_at

SOURCE = "AsyncSpecRoute(base_url=…)"


def plain_config(
    base_url: str | None = None,
    api_key: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    timeouts: Timeouts | None = None,
    timeouts_set: frozenset[str] = frozenset(),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """One provider that answers for any model; its profile is the one whose address this is.

    Without ``base_url``: ``OPENAI_BASE_URL``, else OpenAI, as openai's own client does. Without
    ``api_key``: the known provider's own variable; ``OPENAI_API_KEY`` where the address is
    OpenAI's, comes from ``OPENAI_BASE_URL``, or is no known provider's. So a known provider is
    never sent another's key. :class:`ConfigError` for a ``base_url`` that isn't one.
    """
    environ = os.environ if environ is None else environ
    ambient = None if base_url else environ.get("OPENAI_BASE_URL")
    given = base_url or ambient or "https://api.openai.com/v1"
    try:
        address = read_base_url(given)
    except tables.Expected as refused:
        seen = tables.show(given) if refused.shown else tables.NOT_SHOWN
        hint = f"; {refused.hint}" if refused.hint else ""
        raise ConfigError(f"base_url: expected {refused.what}, got {seen}{hint}") from None
    profile = load_profile(profile_at(address))
    if ambient or profile.name == "generic":
        variables = [profile.env_key, "OPENAI_API_KEY"]
    else:
        variables = [profile.env_key]
    key = api_key or next((environ[v] for v in variables if v and environ.get(v)), None)
    provider = ProviderConfig(
        name=profile.name,
        profile=profile.name,
        base_url=address,
        env_key=None if key else profile.env_key,
        api_key=key,
        headers=dict(headers or {}),
        query=dict(query or {}),
        timeouts=timeouts or Timeouts(),
        timeouts_set=timeouts_set,
    )
    return Config(
        providers={provider.name: provider},
        default_provider=provider.name,
        source=SOURCE,
        origins={
            f"providers.{provider.name}.base_url": "argument" if base_url else "environment",
            f"providers.{provider.name}.profile": "matched by host",
        },
    )

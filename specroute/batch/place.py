"""Where a model's batch job goes: its first target's provider, by a plain openai client.

Knows a config's providers and how each wants its key; nothing of jobs.
"""

from __future__ import annotations

import openai

from specroute.batch.job import Place
from specroute.errors import RequestError
from specroute.profiles import load_profile
from specroute.routes import Routes


def place_of(routes: Routes, model: str) -> Place:
    """The place for ``model=``. Raises :class:`RequestError` for a provider that is not known to
    have a Batch API."""
    resolved = routes.resolve(model)
    provider = resolved.provider
    if not routes.direct and routes.capabilities(resolved).batch_api is not True:
        raise RequestError(
            f"provider {provider.name!r} is not known to have a Batch API; use batch() for model "
            f"{model!r}, or say that it has one: providers.{provider.name}.capabilities = "
            "{ batch_api = true }"
        )
    key = provider.key() or "none"
    headers = dict(provider.headers)
    if load_profile(provider.profile).auth == "api-key":
        headers["api-key"] = key
    client = openai.AsyncOpenAI(
        api_key=key,
        base_url=provider.base_url,
        default_query=dict(provider.query),
        http_client=routes.http_client,
    )
    # What openai read from the environment belongs to OpenAI, not to this provider.
    client.organization = client.project = None
    client._custom_headers = headers
    return Place(provider.name, resolved.target.model, client)

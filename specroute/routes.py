"""Who answers: one config's models, providers and clients, and what is known of them.

Knows names, capabilities, limits and prices. Deliberately sends nothing and knows no request's
state, so that a request keeps the routes that it began with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from math import inf

import httpx2

from specroute.config import Config, ProviderConfig, Timeouts, provider_for
from specroute.errors import ConfigError, RequestError, UnknownModel
from specroute.exchange import Resolved, RouterRequest
from specroute.health import Deployment, Health
from specroute.http import wire
from specroute.http.client import HttpClient
from specroute.http.gate import Gate
from specroute.http.supervisor import Supervisor
from specroute.itinerary import Itinerary
from specroute.ledger import Price, price_for
from specroute.probed import refined
from specroute.profiles import Capabilities, capabilities_for, load_profile, profile_names
from specroute.standby import FromText
from specroute.target.target import Target
from specroute.types import TargetRef

PRICE_LASTS_S = 60.0
"""Some prices change by the hour; looking one up for every call would cost more than the call."""


class Routes:
    """One config, ready to be asked. ``http_client`` is shared and never closed here.

    ``direct``: the plain client: requests go where they are addressed, as they are.
    ``gates``: asked before each call to a provider.
    """

    def __init__(
        self,
        config: Config,
        http_client: httpx2.AsyncClient,
        supervisor: Supervisor,
        *,
        direct: bool = False,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.config = config
        self.direct = direct
        self.http_client = http_client
        self._supervisor = supervisor
        self._gates = gates
        self._clients: dict[str, HttpClient] = {}
        self._capabilities: dict[tuple[str, str], Capabilities] = {}
        self._timeouts: dict[tuple[str, float | None, float | None, bool], Timeouts] = {}
        self._resolved: dict[str, Resolved] = {}
        self._prices: dict[str, tuple[float, Price | None]] = {}
        self._default = config.default_provider or (
            next(iter(config.providers)) if len(config.providers) == 1 else None
        )

    def resolve(self, name: str) -> Resolved:
        """``model=`` to a target: a configured name, ``provider:model``, or the default provider's.

        :class:`UnknownModel` lists the configured names.
        """
        found = self._resolved.get(name)
        if found is None:
            found = self._resolve(name)
            if len(self._resolved) < 1024:
                self._resolved[name] = found
        return found

    def _resolve(self, name: str) -> Resolved:
        config = self.config
        model = config.models.get(name)
        if model is not None:
            target = model.targets[0]
            provider = provider_for(config, target.provider)
            others, missing = [], []
            for other in model.targets[1:]:
                try:
                    provider_for(config, other.provider)
                    others.append(other)
                except ConfigError as error:
                    missing.append(f"{other} can't be asked: {error}")
            return Resolved(name, target, provider, model, tuple(others), tuple(missing))
        if not self.direct and ":" in name:
            place, _, rest = name.partition(":")
            # A name such as llama3:8b is the default provider's, unless it names a declared one.
            if place in config.providers or (
                config.default_provider is None and place in profile_names()
            ):
                return Resolved(name, TargetRef(place, rest), provider_for(config, place), None)
        default = config.default_provider or (None if config.models else self._default)
        if default is not None:
            return Resolved(name, TargetRef(default, name), provider_for(config, default), None)
        known = sorted(config.models)
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownModel(
            f"model {name!r} is not configured{hint}; known: {', '.join(known) or 'none'}. "
            "'provider:model' names one at a provider; default_provider takes any other",
            param="model",
            code="model_not_found",
        )

    def at(self, resolved: Resolved, target: TargetRef) -> Resolved:
        """The same model at another of its targets."""
        if target == resolved.target:
            return resolved
        provider = provider_for(self.config, target.provider)
        return replace(resolved, target=target, provider=provider)

    def http(self, provider: ProviderConfig) -> HttpClient:
        """The client for one provider."""
        client = self._clients.get(provider.name)
        if client is None:
            client = self._clients[provider.name] = HttpClient(
                provider,
                client=self.http_client,
                profile_auth=load_profile(provider.profile).auth,
                supervisor=self._supervisor,
                gates=self._gates,
            )
        return client

    def capabilities(self, resolved: Resolved) -> Capabilities:
        """What a target can do, as far as profile and config say."""
        key = (resolved.provider.name, resolved.target.model)
        found = self._capabilities.get(key)
        if found is None:
            profile = load_profile(resolved.provider.profile)
            provider, model = resolved.provider, resolved.target.model
            found = refined(
                capabilities_for(profile, provider, model),
                provider.base_url,
                model,
                provider.capabilities,
            )
            if len(self._capabilities) < 1024:
                self._capabilities[key] = found
        return found

    def timeouts(
        self, provider: ProviderConfig, request: RouterRequest, *, streamed: bool = True
    ) -> Timeouts:
        """The limits of one request: the config's, capped by the caller's.

        Of an answer that comes at once nothing comes before all of it is made: ``first_token``
        counts for it only where the config sets it. A plain client has the caller's alone, for
        each attempt, and no total: openai's are none either.
        """
        key = (provider.name, request.connect_s, request.read_s, streamed)
        found = self._timeouts.get(key)
        if found is None:
            connect = inf if request.connect_s is None else request.connect_s
            read = inf if request.read_s is None else request.read_s
            own = provider.timeouts
            if self.direct:
                idle = 0.0 if read == inf else max(read, own.idle)
                found = Timeouts(
                    connect=connect, first_token=read, stall=read, total=inf, idle=idle
                )
            else:
                first = own.first_token
                if not streamed and "first_token" not in provider.timeouts_set:
                    first = inf
                found = replace(
                    own,
                    connect=min(own.connect, connect),
                    first_token=min(first, read),
                    stall=min(own.stall, read),
                )
            if len(self._timeouts) < 256:
                self._timeouts[key] = found
        return found

    def standing_by(self, resolved: Resolved, itinerary: Itinerary, health: Health) -> FromText:
        """Who goes on with an answer of this model that broke off."""
        return FromText(
            itinerary,
            health,
            partial(self.deployment, health),
            lambda ref: self.target(self.at(resolved, ref)),
        )

    def target(self, resolved: Resolved) -> Target:
        """What answers, as whoever continues an answer sees it."""
        return Target(resolved.target, self.http(resolved.provider), self.capabilities(resolved))

    def limits(self, resolved: Resolved, request: RouterRequest, *, streamed: bool) -> Timeouts:
        """What spans all attempts of a text call. With several targets those are the caller's own
        limits and ``total``: each target's ``first_token`` and ``stall`` are for itself alone."""
        own = self.timeouts(resolved.provider, request, streamed=streamed)
        if not resolved.others:
            return own
        read = inf if request.read_s is None else request.read_s
        return replace(own, connect=inf, first_token=read, stall=read)

    def deployment(self, health: Health, target: TargetRef) -> Deployment:
        """The health of a target at its provider's address."""
        return health.of(provider_for(self.config, target.provider), target.model)

    def price_of(self, target: str) -> Price | None:
        """What a ``provider:model`` costs now; ``None`` where that isn't known."""
        now = time.monotonic()
        found = self._prices.get(target)
        if found is None or now - found[0] > PRICE_LASTS_S:
            ref = TargetRef.parse(target)
            provider = provider_for(self.config, ref.provider)
            price = price_for(provider, load_profile(provider.profile), ref.model)
            found = (now, price)
            if len(self._prices) < 1024:
                self._prices[target] = found
        return found[1]

    def redact(self, text: str) -> str:
        """``text`` without any provider's key; a bundled one's is known once it is asked."""
        known = (*self.config.providers.values(), *(c.provider for c in self._clients.values()))
        return wire.redact(text, (secret for provider in known for secret in provider.secrets))

    def redactor(self, request: RouterRequest) -> Callable[[str], str]:
        """As :meth:`redact`, and without the key that a plain client's own request carries (a
        copy's, or one that a function gave)."""
        if request.outgoing is None:
            return self.redact
        return _Redactor(self, request.outgoing.headers)

    def provider_of(self, request: RouterRequest) -> ProviderConfig:
        """Whose a request is that is no text call; its ``model`` becomes the target's own name."""
        fields = request.fields
        if fields is None and isinstance(request.body, bytes) and _is_json(request.headers):
            try:
                fields = request.json()
            except RequestError:
                fields = None
        name = fields.get("model") if fields is not None else None
        if isinstance(name, str) and not self.direct:
            try:
                resolved = self.resolve(name)
            except UnknownModel:
                if self._default is None:
                    raise
            else:
                given = isinstance(request.body, bytes) and _is_json(request.headers)
                if resolved.target.model != name and given:
                    assert isinstance(request.body, bytes)
                    request.body = wire.replace_model(request.body, name, resolved.target.model)
                return resolved.provider
        if self._default is None:
            raise RequestError(
                f"{request.method} {request.path} names no configured model, so it is not clear "
                "which provider it is for: set default_provider in the config "
                f"({', '.join(sorted(self.config.providers)) or 'no provider'})"
            )
        return provider_for(self.config, self._default)


class _Redactor:
    """Takes the providers' keys out of a text, and that of a plain client's own request."""

    __slots__ = ("_headers", "_routes")

    def __init__(self, routes: Routes, headers: httpx2.Headers) -> None:
        self._routes = routes
        self._headers = headers

    def __call__(self, text: str) -> str:
        key = self._headers.get("authorization", "").removeprefix("Bearer ")
        return wire.redact(self._routes.redact(text), (key,))


def _is_json(headers: Sequence[tuple[str, str]]) -> bool:
    return any(k.lower() == "content-type" and "json" in v for k, v in headers)

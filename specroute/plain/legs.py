"""How a call reaches each of its targets: its body, its limits, its client, and who takes it up.

Puts together what ``attempts`` goes through. Knows no answers, and asks nobody itself.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from specroute.config import ProviderConfig
from specroute.errors import ProviderError
from specroute.exchange import Resolved, RouterRequest
from specroute.health import Deployment, Health
from specroute.http.deadline import Deadline
from specroute.itinerary import Itinerary
from specroute.plain import outgoing
from specroute.plain.attempts import Attempts, Leg
from specroute.plain.resumption import resumed
from specroute.plain.tally import PlainTally
from specroute.request import CHAT, COMPLETIONS
from specroute.routes import Routes
from specroute.types import TargetRef


def text_attempts(
    request: RouterRequest,
    resolved: Resolved,
    tally: PlainTally,
    fields: Mapping[str, Any],
    routes: Routes,
    health: Health,
    rng: random.Random,
) -> Attempts:
    """The attempts of a plain chat or completions call."""
    streamed = fields.get("stream") is True
    legs = _TextLegs(request, resolved, tally, fields, routes, health, streamed=streamed)
    return Attempts(
        request,
        legs.itinerary,
        legs,
        health,
        tally.deadline,
        tally,
        whole=not streamed,
        direct=routes.direct,
        rng=rng,
    )


class _TextLegs:
    """A text call's way to each of its targets."""

    __slots__ = (
        "_bodies",
        "_fields",
        "_health",
        "_request",
        "_resolved",
        "_routes",
        "_streamed",
        "_tally",
        "itinerary",
    )

    def __init__(
        self,
        request: RouterRequest,
        resolved: Resolved,
        tally: PlainTally,
        fields: Mapping[str, Any],
        routes: Routes,
        health: Health,
        *,
        streamed: bool,
    ) -> None:
        self.itinerary = Itinerary(
            resolved.targets, resolved.fallback_on, request.max_retries, resolved.meant
        )
        self._request = request
        self._resolved = resolved
        self._tally = tally
        self._fields = fields
        self._routes = routes
        self._health = health
        self._streamed = streamed
        self._bodies: dict[TargetRef, bytes] = {}

    def leg(self, target: TargetRef, taken: int) -> Leg:
        request, resolved, routes = self._request, self._resolved, self._routes
        at = routes.at(resolved, target)
        own_usage = (
            self._streamed
            and self._fields.get("stream_options") is None
            and routes.capabilities(at).stream_usage is True
        )
        body = self._bodies.get(target)
        if body is None:
            body = outgoing.body_for(request, resolved.asked, target.model, own_usage)
            self._bodies[target] = body
        limits = self._tally.deadline
        if resolved.others:
            own = routes.timeouts(at.provider, request, streamed=self._streamed)
            limits = limits.within(own)
        elif taken and routes.direct:
            limits = Deadline(limits.timeouts, limits.clock)
        call = outgoing.call_for(request, target.model, body)
        return Leg(routes.http(at.provider), call, limits, own_usage)

    def deployment(self, target: TargetRef) -> Deployment:
        return self._routes.deployment(self._health, target)

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes], leg: Leg
    ) -> AsyncGenerator[bytes] | None:
        request, resolved, routes, tally = self._request, self._resolved, self._routes, self._tally
        path = CHAT if request.path.endswith(CHAT) else COMPLETIONS
        target = routes.target(routes.at(resolved, tally.target))
        standby = routes.standing_by(resolved, self.itinerary, self._health)
        return await resumed(
            error, kept, path, request.json(), target, standby, tally, leg.deadline
        )


def other_attempts(
    request: RouterRequest,
    provider: ProviderConfig,
    routes: Routes,
    health: Health,
    rng: random.Random,
) -> Attempts:
    """The attempts of anything else, at the one provider it belongs to."""
    streamed = (request.fields or {}).get("stream") is True
    deadline = Deadline(routes.timeouts(provider, request, streamed=streamed))
    return Attempts(
        request,
        Itinerary((TargetRef(provider.name, ""),), (), request.max_retries),
        _OtherLegs(request, provider, routes, health, deadline),
        health,
        deadline,
        None,
        whole=request.whole,
        direct=routes.direct,
        rng=rng,
    )


class _OtherLegs:
    """The way of what is no text call: nobody takes it up."""

    __slots__ = ("_deadline", "_health", "_provider", "_request", "_routes")

    def __init__(
        self,
        request: RouterRequest,
        provider: ProviderConfig,
        routes: Routes,
        health: Health,
        deadline: Deadline,
    ) -> None:
        self._health = health
        self._request = request
        self._provider = provider
        self._routes = routes
        self._deadline = deadline

    def leg(self, target: TargetRef, taken: int) -> Leg:
        limits = self._deadline
        if taken and self._routes.direct:
            limits = Deadline(limits.timeouts, limits.clock)
        call = outgoing.call_for(self._request, None)
        return Leg(self._routes.http(self._provider), call, limits)

    def deployment(self, target: TargetRef) -> Deployment:
        return self._routes.deployment(self._health, target)

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes], leg: Leg
    ) -> AsyncGenerator[bytes] | None:
        return None

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
from specroute.health import Health
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
    deadline, direct = tally.deadline, routes.direct
    several = len(resolved.targets) > 1
    bodies: dict[TargetRef, bytes] = {}

    def leg(target: TargetRef, taken: int) -> Leg:
        at = routes.at(resolved, target)
        own_usage = streamed and fields.get("stream_options") is None
        own_usage = own_usage and routes.capabilities(at).stream_usage is True
        body = bodies.get(target)
        if body is None:
            body = outgoing.body_for(request, resolved.asked, target.model, own_usage)
            bodies[target] = body
        limits = deadline
        if several:
            limits = deadline.within(routes.timeouts(at.provider, request, streamed=streamed))
        elif direct and taken:
            limits = Deadline(deadline.timeouts, deadline.clock)
        call = outgoing.call_for(request, target.model, body)
        return Leg(routes.http(at.provider), call, limits, own_usage)

    itinerary = Itinerary(
        resolved.targets, resolved.fallback_on, request.max_retries, resolved.meant
    )

    async def resume(
        error: ProviderError, kept: Sequence[bytes], leg: Leg
    ) -> AsyncGenerator[bytes] | None:
        path = CHAT if request.path.endswith(CHAT) else COMPLETIONS
        target = routes.target(routes.at(resolved, tally.target))
        standby = routes.standing_by(resolved, itinerary, health)
        return await resumed(
            error, kept, path, request.json(), target, standby, tally, leg.deadline
        )

    return Attempts(
        request,
        itinerary,
        leg,
        health,
        routes.deployment_in(health),
        deadline,
        tally,
        whole=not streamed,
        direct=direct,
        rng=rng,
        resumer=resume,
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

    def leg(target: TargetRef, taken: int) -> Leg:
        fresh = routes.direct and taken > 0
        limits = Deadline(deadline.timeouts, deadline.clock) if fresh else deadline
        return Leg(routes.http(provider), outgoing.call_for(request, None), limits)

    return Attempts(
        request,
        Itinerary((TargetRef(provider.name, ""),), (), request.max_retries),
        leg,
        health,
        routes.deployment_in(health),
        deadline,
        None,
        whole=request.whole,
        direct=routes.direct,
        rng=rng,
    )

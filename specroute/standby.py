"""Who goes on with an answer that broke off: the same target once more, then the next ones.

Knows the itinerary, the targets' health and what each can continue. Streams nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from specroute.context import Prompt
from specroute.continuing import Continuing
from specroute.errors import ProviderError
from specroute.health import Deployment, Health
from specroute.http import faults
from specroute.itinerary import Itinerary
from specroute.target import templates
from specroute.target.target import Target
from specroute.types import TargetRef

PATIENCE = 0.25
"""The share of the time left that finding out another target's prompt may take."""


class FromText:
    """Takes an answer up from its text; one request's. ``target_of`` makes or finds a target."""

    def __init__(
        self,
        itinerary: Itinerary,
        health: Health,
        deployment: Callable[[TargetRef], Deployment],
        target_of: Callable[[TargetRef], Target],
    ) -> None:
        self._itinerary = itinerary
        self._health = health
        self._deployment = deployment
        self._target_of = target_of

    async def after(self, error: ProviderError, going: Continuing) -> tuple[Target, Prompt] | None:
        """As :class:`~specroute.continuing.Standby` says."""
        fault = faults.of_error(error)
        if fault is None or going.deadline.remaining("total") <= 0:
            return None
        if self._itinerary.here is None:
            self._itinerary.go(going.target.ref)
        now = self._health.clock()
        options = self._itinerary.options(fault, resuming=True)
        options.sort(key=lambda ref: not self._deployment(ref).ready(now))
        for ref in options:
            wait = self._deployment(ref).wait(now)
            if wait >= going.deadline.remaining("stall"):
                continue
            same = ref == going.target.ref
            target = going.target if same else self._target_of(ref)
            prompt = going.prompt if same else await _prompt(target, going)
            if target.can_continue(going.request, prompt) is None:
                continue
            if wait > 0:
                await asyncio.sleep(wait)
            self._itinerary.go(ref)
            return target, prompt
        return None


async def _prompt(target: Target, going: Continuing) -> Prompt:
    """The prompt in the forms that ``target`` needs to go on with the answer."""
    request = going.request
    prompt = templates.unrendered(request)
    if target.can_continue(request, prompt) is None and request.obstacle is None:
        try:
            patient = going.deadline.resumed().part(PATIENCE)
            prompt = await templates.render(target, request, going.book, patient)
        except (templates.NoTemplate, ProviderError) as error:
            going.notes.append(f"{target.ref} could not go on with the answer: {error}")
    return prompt

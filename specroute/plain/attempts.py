"""The attempts of one plain call: sent, and sent again, to this target or the next, while the rules
and the deadline allow.

Knows when another attempt is made and after how long. Knows neither what an answer holds nor how a
target is reached; who may be asked is the itinerary's matter, who had better be, health's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specroute.errors import AllCooling, DeadlineExceeded, ProviderError
from specroute.exchange import Reply, RouterRequest
from specroute.health import Deployment, Health
from specroute.http import faults, retry
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import Deadline
from specroute.http.faults import Fault
from specroute.http.reply import OpenReply
from specroute.itinerary import Itinerary, substitute
from specroute.plain.outgoing import count_retry
from specroute.plain.replies import Refusal, answered, refused
from specroute.plain.tally import PlainTally
from specroute.types import Exactness, TargetRef

log = logging.getLogger("specroute")

BRIEF_S = 0.05
"""A wait that nobody notices: also a caller who wants no retries would rather have an answer."""


@dataclass(slots=True)
class Leg:
    """One attempt at one target, ready to leave."""

    http: HttpClient
    call: Call
    deadline: Deadline
    own_usage: bool = False
    """Usage was asked for by us."""


class Legs(Protocol):
    """How a call reaches its targets."""

    def leg(self, target: TargetRef, taken: int) -> Leg:
        """The attempt at ``target`` after ``taken`` others; its clocks start now."""
        ...

    def deployment(self, target: TargetRef) -> Deployment:
        """How a target is."""
        ...

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes], leg: Leg
    ) -> AsyncGenerator[bytes] | None:
        """The rest of an answer that ``error`` ended after ``kept`` of it was handed on, if it can
        be had. ``leg``: the attempt that brought it."""
        ...


class Attempts:
    """One request's. ``deadline`` spans them all; ``tally`` is ``None`` for what is no text call.

    ``direct``: a plain client's request: it goes where it is addressed, whatever is known of that
    place, and its timeouts are each attempt's own, as openai's are.
    """

    def __init__(
        self,
        request: RouterRequest,
        itinerary: Itinerary,
        legs: Legs,
        health: Health,
        deadline: Deadline,
        tally: PlainTally | None,
        *,
        whole: bool,
        direct: bool,
        rng: random.Random,
    ) -> None:
        self.itinerary = itinerary
        self.taken = 0
        """Attempts made before the present one."""
        self._request = request
        self._legs = legs
        self._health = health
        self._deadline = deadline
        self._tally = tally
        self._text = tally is not None
        """An answer is read, so that a redirect which nobody follows is none."""
        self._whole = whole
        self._direct = direct
        self._rng = rng
        self._leg: Leg | None = None
        self._arrived = False
        """The present attempt has brought a good status."""
        self._stands: Refusal | ProviderError | None = None
        """The failure to show if nobody answers: the last one, but no refusal where another target
        only failed."""

    async def start(self) -> TargetRef:
        """Choose whom to ask first, and wait where all ask to be left alone (not of a plain
        client's: it goes where it is addressed).

        Raises :class:`AllCooling` where that would take too long, or the caller wants no retries:
        then nobody waits for one either, but for a moment.
        """
        targets = self.itinerary.targets
        target, wait = self._best([(t, 0.0) for t in targets])
        if target != targets[0] and self._tally is not None:
            why = self._legs.deployment(targets[0]).why(self._health.clock())
            self._tally.notes.append(f"{targets[0]} {why}: {target} was asked first")
        if wait > 0:
            brief = wait <= BRIEF_S and wait < self._deadline.remaining("first_token")
            if not (brief or self._waits(wait)):
                raise self._all_cooling(wait)
            await asyncio.sleep(wait)
        return target

    async def run(self, target: TargetRef, failed: ProviderError | None = None) -> Reply:
        """Ask ``target``, and whoever comes next, until there is an answer, an error status that
        stands, or an error to raise. ``failed``: ``target`` was asked and failed so."""
        stands: Refusal | ProviderError | None = None
        if failed is None or len(self.itinerary.targets) == 1:
            self._go(target)
        else:
            self.itinerary.go(target)
            stands = await self._move(failed, booked=True)
        while stands is None:
            got = await self._send()
            if isinstance(got, Refusal):
                stands = got
                break
            assert self._leg is not None
            name = self._leg.http.provider.name
            recovery = None if self._direct or self._whole or not self._request.replayable else self
            try:
                return await answered(
                    got, name, self._tally, self.taken, self._whole, self._request, recovery
                )
            except ProviderError as error:
                stands = await self._move(error)
        if isinstance(stands, Refusal):
            return refused(stands, self._tally, self.taken)
        raise stands

    async def again(self, error: ProviderError) -> OpenReply:
        """Another answer from its start, for one that failed before anything of it was handed on.

        Raises the error that stands.
        """
        stands: Refusal | ProviderError | None = await self._move(error)
        if stands is None:
            got = await self._send()
            if isinstance(got, OpenReply):
                return got
            stands = got
        raise stands.error() if isinstance(stands, Refusal) else stands

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes]
    ) -> AsyncGenerator[bytes] | None:
        """The rest of an answer that broke off after ``kept`` was handed on, taken up from its
        text; ``None``: it can't be."""
        leg, tally = self._leg, self._tally
        if leg is None or tally is None:
            return None
        rest = await self._legs.resume(error, kept, leg)
        if rest is not None:
            tally.attempt(error.outcome)
            tally.booked = True
        return rest

    def _go(self, target: TargetRef) -> None:
        self.itinerary.go(target)
        self._arrived = False
        leg = self._leg = self._legs.leg(target, self.taken)
        leg.call.waits = self.itinerary.last
        if self.taken:
            count_retry(leg.call, self.taken)
        tally = self._tally
        if tally is not None:
            tally.target = target
            tally.own_usage = leg.own_usage
            tally.booked = False
            tally.request_id = None
            if not self._direct:
                told = substitute(self.itinerary.meant, target)
                tally.exactness, tally.exactness_reason = told or (Exactness.EXACT, None)

    async def _send(self) -> OpenReply | Refusal:
        """Send until a good status comes, or what stands instead."""
        while True:
            leg, tally = self._leg, self._tally
            assert leg is not None
            if tally is not None:
                tally.started_at = leg.deadline.clock()
            failure: Refusal | ProviderError
            try:
                reply = await leg.http.send(leg.call, leg.deadline, decode=tally is not None)
            except ProviderError as error:
                failure = error
            else:
                if tally is not None:
                    tally.request_id = reply.request_id
                if reply.status < (300 if self._text else 400):
                    self._arrived = True
                    return reply
                failure = await Refusal.read(reply, leg.http)
            stands = await self._move(failure)
            if isinstance(stands, Refusal):
                return stands
            if stands is not None:
                raise stands

    async def _move(
        self, failure: Refusal | ProviderError, *, booked: bool = False
    ) -> Refusal | ProviderError | None:
        """After a failure: get ready to ask whoever is next, or say which failure stands."""
        fault, repeat, wait, outcome = self._read(failure)
        if fault is not Fault.REFUSED or self._stands is None:
            self._stands = failure
        found = self._next(fault, repeat, wait)
        tally = self._tally
        if tally is not None and not booked and (found is not None or self._stands is not failure):
            tally.attempt(outcome)
            tally.booked = found is None
        if found is None:
            return self._stands
        target, wait = found
        log.info("%s after %s: asking %s in %.2f s", self.itinerary.here, outcome, target, wait)
        if wait > 0:
            await asyncio.sleep(wait)
        self.taken += 1
        self._go(target)
        return None

    def _read(self, failure: Refusal | ProviderError) -> tuple[Fault | None, bool, float, str]:
        """(its fault, whether the same target may be asked again, after how long, its name)."""
        if isinstance(failure, Refusal):
            status, headers, now = failure.reply.status, failure.reply.headers, time.time()
            fault = faults.of_status(status, failure.body)
            repeat = retry.status_retryable(status, headers, now) and not (
                status == 429 and fault is Fault.REFUSED
            )
            return (
                fault,
                repeat,
                retry.delay(self.taken, headers, now, self._rng),
                f"status {status}",
            )
        fault = faults.of_error(failure)
        repeat = retry.error_retryable(failure)
        if self._direct:
            repeat = repeat or isinstance(failure, DeadlineExceeded)
        else:
            # Nonsense under a good status, as gateways send it in the place of a 502.
            repeat = repeat or (self._arrived and fault in (Fault.SERVER, Fault.RATE))
        wait = retry.delay(self.taken, None, 0.0, self._rng)
        return fault, repeat, wait, failure.outcome

    def _next(
        self, fault: Fault | None, repeat: bool, wait: float
    ) -> tuple[TargetRef, float] | None:
        """Whom to ask next and after how long; ``None``: nobody, or not in time."""
        itinerary, here = self.itinerary, self.itinerary.here
        if not self._request.replayable or here is None:
            return None
        if self._direct:
            return (here, wait) if repeat and itinerary.retries > 0 else None
        options = [
            (target, wait if itinerary.asked(target) else 0.0)
            for target in itinerary.options(fault)
            if repeat or target != here
        ]
        if not options:
            return None
        target, wait = self._best(options)
        return (target, wait) if not wait or self._waits(wait) else None

    def _waits(self, wait: float) -> bool:
        """Whether a wait is worth it, under the deadline."""
        return (
            self._request.max_retries > 0
            and wait <= retry.MAX_RETRY_AFTER_S
            and wait < self._deadline.remaining("first_token")
        )

    def _best(self, options: list[tuple[TargetRef, float]]) -> tuple[TargetRef, float]:
        """The option that can be asked soonest; of those alike one that is well, then the first."""
        now = self._health.clock()
        ranked = []
        for index, (target, wait) in enumerate(options):
            deployment = self._legs.deployment(target)
            ready = deployment.ready(now)
            wait = wait if ready else max(wait, deployment.wait(now))
            if ready and not wait:
                return target, 0.0
            ranked.append((wait, not ready, index, target))
        wait, _, _, target = min(ranked, key=lambda each: each[:3])
        return target, wait

    def _all_cooling(self, wait: float) -> AllCooling:
        now = self._health.clock()
        each = "; ".join(f"{t} {self._legs.deployment(t).why(now)}" for t in self.itinerary.targets)
        return AllCooling(
            f"no target of this model can be asked within the request's deadline: {each}. "
            f"Try again in {wait:.1f} s",
            provider=self.itinerary.preferred.provider,
            wait_s=wait,
        )

"""The attempts of one plain call: sent, and sent again while the rules and the deadline allow.

Knows when another attempt is made. Knows neither who the provider is nor what an answer holds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from specroute.errors import DeadlineExceeded, ProviderError
from specroute.exchange import Reply, RouterRequest
from specroute.http import retry
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.outgoing import call_for, count_retry
from specroute.replies import answered, refused
from specroute.tally import PlainTally

log = logging.getLogger("specroute")


async def attempt(
    request: RouterRequest,
    http: HttpClient,
    deadline: Deadline,
    tally: PlainTally | None,
    *,
    whole: bool,
    direct: bool,
    rng: random.Random,
) -> Reply:
    """Send until there is an answer, an error status that stands, or an error to raise.

    ``direct``: a plain client's request, whose timeouts are each attempt's own. Nothing is sent
    again after the first byte of an answer.
    """
    call = call_for(request, None if tally is None else tally.target.model)
    taken = 0
    while True:
        if taken and direct:
            # A plain client's timeouts are openai's: each attempt has its own.
            deadline = Deadline(deadline.timeouts, deadline.clock)
        more = taken < request.max_retries and request.replayable
        started = deadline.clock()
        try:
            reply = await http.send(call, deadline, decode=tally is not None)
            if tally is not None:
                tally.started_at = started
                tally.request_id = reply.request_id
            if reply.status < 400:
                return await answered(reply, http.provider.name, tally, taken, whole)
            now = time.time()
            wait = retry.delay(taken, reply.headers, now, rng)
            if not (
                more
                and retry.status_retryable(reply.status, reply.headers, now)
                and (direct or wait < deadline.remaining("first_token"))
            ):
                return await refused(reply, http, tally, taken)
            await reply.drain()
            outcome = f"status {reply.status}"
        except ProviderError as error:
            wait = retry.delay(taken, None, 0.0, rng)
            retryable = retry.error_retryable(error) or (
                direct and isinstance(error, DeadlineExceeded)
            )
            in_time = direct or wait < deadline.remaining("first_token")
            if not (more and retryable and in_time):
                raise
            outcome = error.outcome
        if tally is not None:
            tally.attempt(outcome, deadline.clock() - started)
        log.info("%s: retrying in %.2f s after %s", http.provider.name, wait, outcome)
        await asyncio.sleep(wait)
        taken += 1
        count_retry(call, taken)

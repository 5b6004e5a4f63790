"""Sends a batch: so many at once, each until it has an answer or its attempts are used up.

Knows attempts, waits and what ends an item; the client's own config sees to providers, deadlines
and speculation. The last attempt is a plain call.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import httpx2
import openai

from specroute import reporting
from specroute.batch.items import BatchRequest, read_requests
from specroute.batch.journal import Journal
from specroute.batch.progress import OnItem, Progress, watching
from specroute.batch.results import BatchItem, BatchResult
from specroute.errors import RequestError
from specroute.http import retry
from specroute.reporting import FIELD

PLAIN: Mapping[str, Any] = {"preset": "fixed", "method": "plain"}
_SPECULATIVE = ("/chat/completions", "/completions")


class Sender(Protocol):
    """What a batch needs of a client."""

    def post(self, path: str, *, cast_to: Any, body: Any, options: Any) -> Any:
        """openai's ``post``."""
        ...


async def run_batch(
    client: Sender,
    requests: Iterable[Mapping[str, Any]],
    *,
    concurrency: int = 32,
    method: str | None = None,
    policy: str | Mapping[str, Any] | None = None,
    journal: Any = None,
    attempts: int = 4,
    timeout: float | None = None,
    progress: bool | OnItem | None = None,
    rng: random.Random | None = None,
) -> BatchResult:
    """Answer every request; see :meth:`specroute.AsyncSpecRoute.batch`."""
    _check("concurrency", concurrency, int, 1)
    _check("attempts", attempts, int, 1)
    if timeout is not None:
        _check("timeout", timeout, (int, float), 1e-3)
    if method is not None and policy is not None:
        raise RequestError(
            f"method={method!r} is short for a policy: give method or policy={policy!r}, not both"
        )
    if method is not None:
        policy = {"preset": "fixed", "method": method}
    asked = read_requests(requests)
    with nullcontext() if journal is None else Journal(journal) as kept:
        known = [None if kept is None else kept.answered(request) for request in asked]
        with watching(progress, len(asked)) as tell:
            run = _Run(client, kept, policy, attempts, timeout, tell, len(asked), rng)
            for item in known:
                if item is not None:
                    run.tell(item)
            left = deque(i for i, item in enumerate(known) if item is None)

            async def work() -> None:
                while left:
                    index = left.popleft()
                    known[index] = await run.answer(asked[index])

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(concurrency, len(left))):
                        group.create_task(work())
            except ExceptionGroup as errors:
                # Not an item's end but the batch's: its journal can't be written, say.
                raise errors.exceptions[0] from None
    return BatchResult([item for item in known if item is not None])


def _check(name: str, value: Any, kind: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not value >= least:
        raise RequestError(f"{name} must be a number of at least {least:g}, got {value!r}")


class _Run:
    """What the workers of one batch share."""

    def __init__(
        self,
        client: Sender,
        journal: Journal | None,
        policy: str | Mapping[str, Any] | None,
        attempts: int,
        timeout: float | None,
        tell: OnItem | None,
        total: int,
        rng: random.Random | None,
    ) -> None:
        self._client = client
        self._journal = journal
        self._policy = policy
        self._attempts = attempts
        self._timeout = timeout
        self._tell = tell
        self._so_far = Progress(total)
        self._rng = rng or random.Random()
        self._pause: dict[str, float] = {}
        """Model → when its provider may be asked again: one 429 holds back everybody."""
        self._refused: dict[str, tuple[int | None, Mapping[str, Any]]] = {}
        """Model → the status and error that every further request would get as well."""

    def tell(self, item: BatchItem) -> None:
        """Count an item."""
        self._so_far = self._so_far.after(item)
        if self._tell is not None:
            self._tell(item, self._so_far)

    async def answer(self, request: BatchRequest) -> BatchItem:
        """One request to its end, which is in the journal when this returns."""
        item = await self._tries(request)
        if self._journal is not None:
            self._journal.ended(request, item)
        self.tell(item)
        return item

    async def _tries(self, request: BatchRequest) -> BatchItem:
        model = str(request.body["model"])
        taken = 0
        while True:
            await self._turn(model)
            status: int | None
            request_id: str | None = None
            if model in self._refused:
                status, error = self._refused[model]
                return BatchItem(request.custom_id, status=status, error=error, attempts=taken)
            if self._journal is not None and not taken:
                self._journal.sent(request)
            headers: Mapping[str, str] | None = None
            status = None
            try:
                response = await self._send(request, taken)
                try:
                    report = reporting.report(response)
                except LookupError:
                    report = None
                return BatchItem(
                    request.custom_id,
                    body=json.loads(response.content),
                    status=response.status_code,
                    request_id=response.headers.get("x-request-id"),
                    attempts=taken + 1,
                    report=report,
                )
            except openai.APIStatusError as error:
                status, headers, said = error.status_code, error.response.headers, _said(error)
                request_id = headers.get("x-request-id")
                lasting = status in (401, 403) or said["code"] == "insufficient_quota"
                if lasting:
                    self._refused[model] = (status, said)
                again = not lasting and retry.status_retryable(status, headers, time.time())
            except openai.APIError as error:  # No connection, too slow, cut, or no sense in it.
                said, again = _said(error), True
            except ValueError as error:
                again = True
                said = {"code": "BadAnswer", "message": f"the answer is no JSON: {error}"}
            taken += 1
            if not again or taken >= self._attempts:
                return BatchItem(
                    request.custom_id,
                    status=status,
                    request_id=request_id,
                    error=said,
                    attempts=taken,
                )
            wait = retry.delay(taken - 1, headers, time.time(), self._rng)
            if status == 429:
                until = time.monotonic() + wait
                self._pause[model] = max(until, self._pause.get(model, 0.0))
            else:
                await asyncio.sleep(wait)

    async def _turn(self, model: str) -> None:
        """Until the model's provider may be asked."""
        while True:
            wait = self._pause.get(model, 0.0) - time.monotonic()
            if wait <= 0:
                return
            # Not all at the same moment; another 429 may move it meanwhile.
            await asyncio.sleep(wait * (1 + 0.1 * self._rng.random()))

    async def _send(self, request: BatchRequest, taken: int) -> httpx2.Response:
        body = dict(request.body)
        if request.path in _SPECULATIVE:
            last = taken > 0 and taken == self._attempts - 1
            policy = PLAIN if last else self._policy
            if policy is not None:
                body[FIELD] = {**(body.get(FIELD) or {}), "policy": policy}
        options: dict[str, Any] = {"max_retries": 0}
        if self._timeout is not None:
            options["timeout"] = self._timeout * 2**taken
        response: httpx2.Response = await self._client.post(
            request.path, cast_to=httpx2.Response, body=body, options=options
        )
        return response


def _said(error: openai.APIError) -> dict[str, Any]:
    code = error.code or getattr(error, "type", None) or type(error).__name__
    return {"code": str(code), "message": str(error)}

"""What one plain call came to: its attempts, its pace, its usage, and the report of them.

Knows figures only. Deliberately knows no bytes and makes no attempt itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specroute.errors import ProviderError
from specroute.http import wire
from specroute.http.deadline import Deadline
from specroute.ledger import Ledger, Price, cost
from specroute.overheard import Overheard
from specroute.reporting import ReportHandle, new_id
from specroute.types import Attempt, Exactness, Method, Report, TargetRef, Usage

UNKNOWN = Usage()


class PlainTally:
    """What one plain call came to; writes its report."""

    __slots__ = (
        "_before",
        "_end",
        "_estimated",
        "_handle",
        "asked",
        "attempts",
        "booked",
        "chunks",
        "deadline",
        "exactness",
        "exactness_reason",
        "finish_reason",
        "first_at",
        "id",
        "last_at",
        "notes",
        "overheard",
        "own_usage",
        "price_of",
        "reason",
        "redact",
        "request_id",
        "started_at",
        "target",
        "usage",
    )

    def __init__(
        self,
        asked: str,
        target: TargetRef,
        deadline: Deadline,
        price_of: Callable[[str], Price | None],
        redact: Callable[[str], str],
    ) -> None:
        self.id = new_id()
        self.asked = asked
        self.target = target
        self.deadline = deadline
        self.price_of = price_of
        self.redact = redact
        self.reason = ""
        """Why the call is plain."""
        self.attempts: list[Attempt] = []
        self.notes: list[str] = []
        self.exactness = Exactness.EXACT
        self.exactness_reason: str | None = None
        self.own_usage = False
        """Usage was asked for by us, and is not the caller's to see."""
        self.overheard: Overheard | None = None
        """Keeps the answer as it is handed on, where somebody reads it afterwards."""
        self.usage = UNKNOWN
        self._estimated = False
        self.finish_reason: str | None = None
        self.first_at: float | None = None
        self.last_at = 0.0
        self.chunks = 0
        """Pieces of content."""
        self.request_id: str | None = None
        self.started_at = deadline.started
        """When the last attempt left."""
        self.booked = True
        """Whether there is no attempt under way that is not among the attempts."""
        self._end: tuple[float, bool, str | None] | None = None
        self._before: Report | None = None
        self._handle: ReportHandle | None = ReportHandle(self._start)

    @property
    def handle(self) -> ReportHandle:
        """The handle, while the call is under way."""
        assert self._handle is not None
        return self._handle

    @property
    def done(self) -> bool:
        """Whether the report is final. The handle is let go of then: it may hold this."""
        return self._handle is None

    def attempt(self, outcome: str) -> None:
        """Book one attempt that brought no answer, or not all of it."""
        usage = Usage(None, self.chunks) if self.chunks else Usage()
        self.attempts.append(
            Attempt(
                str(self.target),
                "plain",
                outcome,
                self.deadline.clock() - self.started_at,
                usage,
                self.request_id,
                estimated=self.chunks > 0,
            )
        )

    def loosen(self, label: Exactness, reason: str) -> None:
        """Lower the guarantee; it never rises again."""
        if label.rank > self.exactness.rank:
            self.exactness, self.exactness_reason = label, reason

    def answered(self, data: Mapping[str, Any]) -> None:
        """A whole answer came at once."""
        self.first_at = self.deadline.clock()
        self.usage = Usage.from_wire(data.get("usage"))
        if self.usage.completion_tokens is None:
            self._estimate(wire.about_tokens(data))
        if self.overheard is not None:
            self.overheard.whole(data)
        self.note_finish(data)
        self.end("ok", complete=True)

    def _estimate(self, tokens: int) -> None:
        """The server gave no count: what was counted here has to do."""
        if tokens:
            self.usage = replace(self.usage, completion_tokens=tokens)
            self._estimated = True

    def note_finish(self, data: Mapping[str, Any]) -> None:
        """Take the finish reason from an answer or a chunk."""
        choices = data.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                reason = wire.finish_reason(choice)
                if reason is not None:
                    self.finish_reason = reason

    def content(self, at: float, pieces: int) -> None:
        """So many pieces of content came."""
        if self.first_at is None:
            self.first_at = at
        self.last_at = at
        self.chunks += pieces

    def fail(self, error: BaseException) -> None:
        """The call ended in an error."""
        if self.done:
            return
        if isinstance(error, ProviderError):
            outcome, said = error.outcome, str(error)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            outcome, said = "cancelled", "cancelled by the caller"
        else:
            outcome, said = type(error).__name__, str(error) or type(error).__name__
        self.end(outcome, complete=False, error=said)

    def abandoned(self) -> None:
        """The reader held the stream for too long and it was ended."""
        self.end("abandoned", complete=False, error="the stream was not read (timeouts.idle)")

    def end(self, outcome: str, *, complete: bool, error: str | None = None) -> None:
        """Book the last attempt, unless it is booked, and fix the report."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if handle.updated:
            self._before = handle.base
        now = self.deadline.clock()
        if self.usage.completion_tokens is None:
            self._estimate(self.chunks)
        if not self.booked:
            self.attempts.append(
                Attempt(
                    str(self.target),
                    "plain",
                    outcome,
                    now - self.started_at,
                    self.usage,
                    self.request_id,
                    estimated=self._estimated,
                )
            )
        self._end = (now, complete, None if error is None else self.redact(error))
        handle.finish(self.report)

    def _start(self) -> Report:
        return Report(id=self.id, model=self.asked, target=str(self.target))

    def report(self) -> Report:
        """The report as it stands. What was tried before the plain call stays in it."""
        usage = self.usage
        first = self.first_at
        started = self.deadline.started
        tokens = usage.completion_tokens
        count = self.chunks if tokens is None else tokens
        tpot = None
        if first is not None and self.chunks > 1 and count > 1:
            tpot = (self.last_at - first) / (count - 1)
        now, complete, error = self._end or (None, False, None)
        attempts = tuple(self.attempts)
        notes = tuple(self.notes)
        first_text_s = None
        before = self._before
        if self._handle is not None and self._handle.updated:
            before = self._handle.base
        if before is not None:
            attempts = before.attempts + attempts
            notes = tuple(dict.fromkeys(before.notes + notes))
            first_text_s = before.first_text_s
        method, drafter = Method.PLAIN.value, None
        exactness, why = self.exactness, self.exactness_reason
        if before is not None:
            method, drafter = before.method, before.drafter
            label = Exactness(before.exactness)
            if label.rank > exactness.rank:
                exactness, why = label, before.exactness_reason
        accepted = usage.accepted_prediction_tokens or 0
        rejected = usage.rejected_prediction_tokens or 0
        billed, cost_usd = usage, None
        if len(attempts) == 1 and attempts[0].outcome == "ok":
            cost_usd = cost(usage, self.price_of(attempts[0].target))
        elif attempts:
            ledger = Ledger()
            for attempt in attempts:
                ledger.add(attempt, self.price_of(attempt.target))
            billed = Usage(ledger.prompt_tokens, ledger.completion_tokens, ledger.cached_tokens)
            cost_usd = ledger.cost_usd
        return Report(
            id=self.id,
            model=self.asked,
            target=str(self.target),
            method=method,
            drafter=drafter,
            drafted=accepted + rejected,
            accepted=accepted,
            rejected=rejected,
            exactness=exactness.value,
            exactness_reason=why,
            plan_reason=self.reason,
            predicted_s=None if before is None else before.predicted_s,
            predicted_usd=None if before is None else before.predicted_usd,
            plain_s=None if before is None else before.plain_s,
            plain_usd=None if before is None else before.plain_usd,
            notes=notes,
            complete=complete,
            finish_reason=self.finish_reason,
            error=error,
            ttft_s=None if first is None else first - started,
            first_text_s=first_text_s,
            tpot_s=tpot,
            total_s=None if now is None else now - started,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=tokens,
            billed_prompt_tokens=billed.prompt_tokens,
            billed_cached_tokens=billed.cached_tokens,
            billed_completion_tokens=billed.completion_tokens,
            cost_usd=cost_usd,
            attempts=attempts,
        )

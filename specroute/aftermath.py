"""What one call's answer will be good for once it is there: which drafts it can be held against.

Knows which kinds of evidence the answer will be, and whose text it is. Learns nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from specroute.candidates import Candidates, Judge
from specroute.overheard import Heard, Overheard
from specroute.recorder import Trace
from specroute.request import TextRequest
from specroute.session import Session, measured_as
from specroute.shadow import Finished
from specroute.target import templates
from specroute.target.target import Target
from specroute.types import Exactness, Method, Report


class Traced(Protocol):
    """The call, as far as it is recorded."""

    @property
    def trace(self) -> Trace | None: ...


@dataclass(slots=True)
class Aftermath:
    """``drafts``: those that are configured for the model."""

    request: TextRequest
    traffic: str
    drafts: tuple[str, ...]
    overheard: Overheard | None = None
    """Keeps a plain answer."""
    session: Session | None = None
    """Where it is speculated on."""
    target: Target | None = None
    hows: tuple[str, ...] = ()
    """What drafts that match the answer are evidence of."""
    by_logprobs: bool = False

    def options(self, options: Candidates, target: Target) -> None:
        """What could have been done for the call."""
        self.target = target
        hows = [measured_as(Method.PREFIX, None)] if options.of(Method.PREFIX) else []
        if options.of(Method.SCORE) and options.judge in (Judge.ARGMAX, Judge.DRAWS):
            hows.append(measured_as(Method.SCORE, options.judge))
        self.hows = tuple(hows)

    def logprobs(self, target: Target) -> None:
        """It can't be speculated on. Where its caller asked for log-probabilities at T = 1 without
        truncation, its answer shows p all the same."""
        self.target, body = target, self.request.body
        untruncated = body.get("top_p") in (None, 1) and not body.get("top_k")
        shown = bool(body.get("logprobs"))
        self.by_logprobs = shown and body.get("temperature") == 1 and untruncated

    def finished(self, report: Report, call: Traced) -> Finished | None:
        """The answer, if it is whole, the target's own, and good for anything."""
        if not report.complete or report.target is None:
            return None
        if not (self.hows or self.by_logprobs) or report.exactness == Exactness.HEURISTIC:
            return None
        session, target = self.session, self.target
        if target is not None and str(target.ref) != report.target:
            return None
        drafts = self.drafts
        heard = None if self.overheard is None else self.overheard.read
        if session is not None and report.method != Method.PLAIN:
            # Its own draft has had real rounds.
            drafts = tuple(d for d in drafts if d not in (session.plan.drafter, report.drafter))
            text = session.answer.text
            heard = lambda: Heard(text)  # noqa: E731 - one of two readers
        if heard is None:
            return None
        traced = None if call.trace is None else call.trace.shadow
        return Finished(
            target=report.target,
            traffic=self.traffic,
            hows=self.hows,
            drafts=drafts,
            prompt=templates.unrendered(self.request),
            vocabulary=None if target is None else target.learned.vocabulary,
            heard=heard,
            by_logprobs=self.by_logprobs,
            traced=None if traced is None else _with_id(traced, report.id),
        )


def _with_id(traced: Any, report_id: str) -> Any:
    def line(data: Mapping[str, Any]) -> None:
        traced({"id": report_id, **data})

    return line

"""What is learned of a call once it has ended: pace, length, what drafts would have done.

Knows measurements and the shadow; nothing of plans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from specroute import ledger
from specroute.aftermath import Aftermath
from specroute.measure import Measurements
from specroute.measure.crowd import Pulse
from specroute.overheard import Overheard
from specroute.pool import Pool
from specroute.reporting import ReportHandle, new_id
from specroute.request import TextRequest
from specroute.shadow import Shadow
from specroute.speculation.calls import TextCall
from specroute.types import Attempt, Method, Report


class Learning:
    """Shared by all requests of a client."""

    def __init__(self, pool: Pool, measurements: Measurements, shadow: Shadow) -> None:
        self._pool = pool
        self._measurements = measurements
        self._shadow = shadow

    def watch(self, call: TextCall, request: TextRequest, traffic: str) -> Aftermath:
        """Measure the call from here to its end, however it is answered."""
        target = str(call.resolved.target)
        began = perf_counter()
        others = self._measurements.begin(target, began, request.about_tokens)
        crowd = self._measurements.targets[target].crowd
        mark, pulse = crowd.mark(began), Pulse(crowd, perf_counter)
        model = call.resolved.model
        after = Aftermath(request, traffic, () if model is None else model.drafts)
        if call.trace is not None:
            call.trace.in_flight = others
        if self._shadow.on and after.drafts:
            kept = None if call.trace is None else call.trace.overheard
            call.overheard = after.overheard = kept or Overheard()
            call.overheard.beat = pulse
        elif after.drafts:
            call.overheard = Overheard(pulse, keep=False)

        def learn(report: Report) -> None:
            beside = crowd.others_since(mark, perf_counter())
            pulse.end(report.completion_tokens if report.complete else None)
            self._measurements.end(target, perf_counter())
            # Another target may have answered in its place.
            self._learn(report, report.target or target, traffic, request.about_tokens, beside)
            if after.session is not None:
                self._shadow.end()
            self._offer(call, after, report)

        call.handle.on_finish(learn)
        return after

    def _offer(self, call: TextCall, after: Aftermath, report: Report) -> None:
        """Let a finished answer of the target's own show what other drafts would have done."""
        finished = after.finished(report, call)
        if finished is None:
            return

        def billed(attempts: Sequence[Attempt]) -> None:
            why = f"shadow acceptance on {finished.target}"
            start = Report(id=new_id(), model=call.resolved.asked, target=finished.target)
            handle = ReportHandle(start)
            call.announce(handle)
            done = ledger.booked(start, attempts, self._pool.price_of)
            handle.finish(replace(done, plan_reason=why, complete=True))

        self._shadow.offer(replace(finished, billed=billed))

    def _learn(
        self, report: Report, target: str, traffic: str, prompt_tokens: int, others: float
    ) -> None:
        """A finished answer's pace and length, and what became of its calls. ``others``: requests
        that were under way beside it, over all its time."""
        seen, at = self._measurements, time.time()
        seen.attempted(report.attempts, at)
        tokens = report.completion_tokens
        if not report.complete or tokens is None:
            return
        alone = len(report.attempts) == 1 and report.attempts[0].purpose == "plain"
        if report.method != Method.PLAIN or not alone or report.ttft_s is None:
            # Otherwise its clock holds what was tried before: no measure of a plain call.
            seen.answer(target, traffic, tokens, at)
            return
        prompt = report.prompt_tokens or prompt_tokens
        if report.tpot_s is not None:
            seen.plain(
                target,
                traffic,
                ttft_s=report.ttft_s,
                tpot_s=report.tpot_s,
                tokens=tokens,
                prompt_tokens=prompt,
                in_flight=others,
                at=at,
            )
        elif report.total_s is not None:
            seen.whole(
                target,
                traffic,
                total_s=report.total_s,
                tokens=tokens,
                prompt_tokens=prompt,
                in_flight=others,
                at=at,
            )

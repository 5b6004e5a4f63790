"""What a request took by its plan's doing, and what a plain call would have taken for what came.

Knows an ended request's report and the plain pace as it was known when the request was planned.
What a fault of the target's, or a reader who lets the stream wait, has taken is nobody's plan's
doing. Keeps no accounts (``planning`` does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specroute.measure import Snapshot
from specroute.measure.crowd import Crowding
from specroute.measure.together import Member, alone
from specroute.policy.base import Forecast, Plan
from specroute.policy.forecast import plain_call, plain_pace
from specroute.types import Report

_NO_FAULT = ("ok", "cancelled", "abandoned")


@dataclass(slots=True)
class Reckoning:
    """One request's. ``figures``: of a plain call to its own target, as they were at its start;
    ``prompt_tokens``: about."""

    plan: Plan
    figures: Callable[[], Snapshot]
    prompt_tokens: int
    gave_way_s: float | None = None
    """Seconds after which the whole answer was left to a plain call."""
    beside: Callable[[], float] | None = None
    """Other requests under way at the target meanwhile, the mean over its time."""
    beyond_s: Callable[[], float] = lambda: 0.0
    """Of a speculated answer: seconds that were not its plan's doing."""
    member: Member = field(default_factory=alone)
    """It among those who follow the same plan."""
    _paces: dict[int, tuple[float | None, float | None]] = field(default_factory=dict)
    """(TTFT, TPOT) of a plain call by the others under way: ``due`` is asked for every piece."""

    def due(self, tokens: int, first: bool, crowd: Crowding) -> float | None:
        """Seconds in which a plain call in this crowd would bring so many tokens more, or its first
        ones; as many times that as the plan was to be slower. What is known of its pace is of the
        request's begin; as in ``next_round`` it is no quicker than the crowd's streams are now."""
        others = crowd.others
        known = self._paces.get(others)
        if known is None:
            known = self._paces[others] = plain_pace(replace(self.figures(), in_flight=others))
        ttft_s, tpot_s = known
        if tpot_s is None:
            return None
        if others:
            tpot_s = max(tpot_s, crowd.tpot() or 0.0)
        plan, slower = self.plan, 1.0
        if plan.predicted is not None and plan.plain is not None and plan.plain.seconds > 0:
            slower = max(1.0, plan.predicted.seconds / plan.plain.seconds)
        return slower * ((ttft_s or 0.0) + (tokens - 1) * tpot_s if first else tokens * tpot_s)

    def instead(self, report: Report) -> Report:
        """An ended request's report with what a plain call would have taken for what came."""
        plain = self._plain(report)
        if plain is None or not report.completion_tokens:
            return replace(report, plain_s=None, plain_usd=None)
        return replace(report, plain_s=plain.seconds, plain_usd=plain.dollars)

    def settled(self, report: Report) -> tuple[Forecast, Forecast] | None:
        """(what was spent, what plain would have) on what came of the answer; ``None``: not known.

        Of an answer that was cut the seconds are those to its last text: what came after it has
        brought nothing that plain could be asked for. Where no text came at all, plain would not
        have brought any before its own first token either.
        """
        plain, took = self._plain(report), report.total_s
        if plain is None or took is None:
            return None
        tokens = report.completion_tokens or 0
        if not tokens:
            plain = replace(plain, seconds=min(plain.seconds, took))
        elif not report.complete:
            took = (report.ttft_s or took) + (tokens - 1) * (report.tpot_s or 0.0)
        if self.gave_way_s is not None:
            # The plain call that came then says nothing of the plan, nor do retries and waits in
            # it: all that the plan has cost is the time before.
            took = self.gave_way_s - _failed(report, "handover") + plain.seconds
        took = max(took - self.beyond_s(), 0.0)
        if report.cost_usd is None or plain.dollars is None:
            return Forecast(took), Forecast(plain.seconds)
        return Forecast(took, report.cost_usd), plain

    def _plain(self, report: Report) -> Forecast | None:
        prompt, figures = report.prompt_tokens or self.prompt_tokens, self.figures()
        if self.beside is not None:  # The load it met, which may not be the one it was planned at.
            figures = replace(figures, in_flight=self.beside())
        return plain_call(figures, prompt, report.completion_tokens or 0)


def _failed(report: Report, purpose: str) -> float:
    """Seconds of such calls that failed, though others may have brought the answer."""
    return sum(
        call.seconds
        for call in report.attempts
        if call.purpose == purpose and call.outcome not in _NO_FAULT
    )

"""``adaptive``: speculate only while the measured figures say that it pays.

Asks every method's forecaster (``forecast``) what the request would take with it, and compares
that with plain under the objective; K = 0 is a normal answer. Knows no method by name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from specroute.acceptance import Lossy
from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.policy.forecast import FORECASTS, HOPE, Offer, best_round
from specroute.policy.objective import Objective
from specroute.types import Method

_RETRY = 50
"""Requests of a class after which a losing drafter is tried again, at most."""
_MIN_ROUNDS = 2
"""Rounds before a request's own evidence may end its speculation."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The preset ``balanced``."""

    objective: Objective = field(default_factory=Objective)
    min_speedup: float = 1.05
    max_rounds: int = 0
    lossy: Lossy | None = None
    """The lossy acceptance rule, where one was asked for."""
    loose: bool = False
    """Lanes may follow words that only resemble the draft's."""

    @property
    def eager(self) -> bool:
        """The first requests go plain while the target is calibrated beside them."""
        return False

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """The plan with the least predicted J, if it beats plain by ``min_speedup``."""
        able = [each for each in options.plans if each.method in FORECASTS and each != PLAIN]
        if not able:
            return Plan(Method.PLAIN, None, 0, options.why_not(Method.SCORE))
        best: tuple[float, Candidate, Offer, Offer] | None = None
        broken = ""
        for candidate in able:
            seen = figures(candidate)
            plain = FORECASTS[Method.PLAIN](seen, ask, self.objective)
            offer = FORECASTS[candidate.method](seen, ask, self.objective)
            if plain is None or offer is None:
                return Plan(Method.PLAIN, None, 0, "the target's plain pace is measured first")
            breaks = self.objective.broken(offer.forecast, plain.forecast, ask)
            if breaks is not None:
                broken = f"{candidate.method} with {candidate.drafter!r} would break {breaks}"
                continue
            gain = self.objective.j(plain.forecast) / self.objective.j(offer.forecast)
            # The less evidence there is against it, the sooner it is tried again.
            due = min(_RETRY, max(2, round(2 * sum(seen.acceptance.judged[:1]))))
            if seen.since_tried >= due and gain < self.min_speedup:
                said = f"not tried for {seen.since_tried} requests: measured anew"
                return self._planned(candidate, offer, plain, said, trial=True)
            if best is None or gain > best[0]:
                best = (gain, candidate, offer, plain)
        if best is None:
            return Plan(Method.PLAIN, None, 0, broken)
        gain, candidate, offer, plain = best
        said = (
            f"{candidate.method} is predicted to run at {gain:.2f} times the plain pace with "
            f"{candidate.drafter!r}"
        )
        if gain < self.min_speedup:
            return Plan(Method.PLAIN, None, 0, said, predicted=plain.forecast, plain=plain.forecast)
        return self._planned(candidate, offer, plain, f"{said}, K = {offer.k}")

    def _planned(
        self, candidate: Candidate, offer: Offer, plain: Offer, reason: str, *, trial: bool = False
    ) -> Plan:
        return Plan(
            candidate.method,
            candidate.drafter,
            max(offer.k, 2) if trial else offer.k,
            reason,
            lanes=offer.lanes,
            chunk=offer.chunk,
            worth=offer.worth,
            max_rounds=offer.max_rounds or self.max_rounds,
            predicted=offer.forecast,
            plain=plain.forecast,
            trial=trial,
        )

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """K by the marginal rule on the pooled survival updated by this request's own rounds; 0
        when the rest of the answer would come sooner from a plain stream, its start included."""
        most = view.plan.max_rounds if view.plan is not None else self.max_rounds
        if most and view.rounds >= most:
            return 0
        if view.plan is not None and view.plan.method is Method.PREFIX:
            return 1  # Nothing is lost by going on: each lane is weighed for itself (``worth``).
        limit = self.objective.max_num_speculative_tokens
        if view.remaining is not None:
            limit = min(limit, max(view.remaining - 1, 1))
        pace, weigh = snapshot.pace, self.objective.weigh
        known = view.verify_s is not None or snapshot.verify_s is not None
        if not known or limit < 1:
            return 1 if view.rounds < _MIN_ROUNDS or pace.tpot_s is None else 0
        best = best_round(
            snapshot,
            snapshot.context,
            self.objective,
            limit=limit,
            survival=view.own.survival(limit, snapshot.acceptance, default=HOPE),
            verify_s=view.verify_s,
        )
        if pace.tpot_s is None or view.rounds < _MIN_ROUNDS:
            return max(best.k, 1)
        expected = (pace.answer_tokens or 0.0) - view.committed
        left = max(expected, 16.0)
        if view.remaining is not None:
            left = min(left, view.remaining)
        usd_in, usd_out = weigh(snapshot.usd_in), weigh(snapshot.usd_out)
        asked = best.prompts * (usd_in * snapshot.context + usd_out) + usd_in * best.k
        ours = (best.seconds + asked) / best.tokens
        restart = (pace.ttft_s or 0.0) + usd_in * snapshot.context
        if (ours - pace.tpot_s - usd_out) * left > restart:
            return 0
        return max(best.k, 1)

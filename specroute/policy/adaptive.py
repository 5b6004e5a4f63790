"""``adaptive``: speculate only while the measured figures say that it pays.

Asks every method's forecaster (``forecast``) what the request would take with it, and compares that
with plain under the objective; K = 0 is a normal answer. Which of several plans, and whether one
that isn't expected to win is tried, is Thompson sampling, within what the ``account`` says may
still be lost. K is chosen anew each round in ``score``; other methods keep to their plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from specroute.acceptance import Lossy
from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Snapshot
from specroute.policy.account import Account, Settled
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.policy.chance import drawn
from specroute.policy.forecast import best_round, plain_pace
from specroute.policy.forecasts import FORECASTS
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer
from specroute.types import Method

TRIAL_ROUNDS = 2
"""Rounds after which a trial that loses goes plain."""
_MIN_ROUNDS = 2
"""Rounds before a request's own evidence may end its speculation."""
_TRIAL_K = (2, 16)
"""The smallest and the largest K of a trial."""
_STICK = 0.98
"""What was done last is kept while nothing is better by more than this."""
_POOLED_ROUNDS = 3.0
"""Rounds that the pooled round time counts as, against a request's own."""
_WEIGHTS = (3.0, 10.0, 100.0, 1 / 3, 0.1, 0.01)
"""Factors on λ that are tried where the best settings would break a limit."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One plan that may be chosen: ``sort`` is its J for the choice, with its chance."""

    sort: float
    candidate: Candidate
    offer: Offer
    objective: Objective
    gain: float
    """J of plain over its own."""
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The presets ``latency``, ``balanced``, ``cost`` and ``exact-only``."""

    objective: Objective = field(default_factory=Objective)
    min_speedup: float = 1.02
    """Speculation starts where it is predicted to win by this; it goes on while it wins at all."""
    exploration: float = 0.005
    """The share of all J that trials may lose, beside the account's first filling."""
    plain_share: float = 0.005
    """The share of all J that plain calls may take where speculation pays, to keep their pace
    known."""
    max_rounds: int = 0
    lossy: Lossy | None = None
    """The lossy acceptance rule, where one was asked for."""
    loose: bool = False
    """Lanes may follow words that only resemble the draft's."""

    @property
    def eager(self) -> bool:
        """The first requests go plain while the target is calibrated beside them."""
        return False

    # --- a request ------------------------------------------------------------------------------

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """Of the plans that keep every limit, the one with the least J, drawn from what is known
        of it; ``plain`` where none is expected to win and none may be tried."""
        able = [each for each in options.plans if each.method in FORECASTS and each != PLAIN]
        if not able:
            return Plan(Method.PLAIN, None, 0, _no_reason(options))
        yardstick = FORECASTS[Method.PLAIN](figures(PLAIN), ask, self.objective)
        if yardstick is None:
            return Plan(Method.PLAIN, None, 0, "the target's plain pace is measured first")
        plain, plain_j = yardstick.forecast, self.objective.j(yardstick.forecast)
        choices: list[_Choice] = []
        said: tuple[float, str] = (0.0, "")
        for candidate in able:
            found = self._weighed(candidate, figures(candidate), ask, plain, plain_j, rng)
            if isinstance(found, tuple):
                said = max(said, found)
            else:
                choices.append(found)
        if not choices:
            return self._plain(plain, said[1] or "its rounds are timed first")
        best = min(choices, key=lambda choice: choice.sort)
        if best.trial:
            return self._planned(best, plain, _trial_reason(best))
        account = ask.account
        if account.yardstick + plain_j <= self.plain_share * account.spent:
            said_why = f"plain's pace is measured anew; {_reason(best, plain)}"
            return replace(self._plain(plain, said_why), yardstick=True)
        return self._planned(best, plain, _reason(best, plain))

    def _weighed(
        self,
        candidate: Candidate,
        seen: Snapshot,
        ask: Ask,
        plain: Forecast,
        plain_j: float,
        rng: random.Random,
    ) -> _Choice | tuple[float, str]:
        """A candidate as a choice, or (its gain, one sentence why it is none)."""
        found = self._offer(candidate, seen, ask, plain)
        if found is None:
            return 0.0, ""
        if isinstance(found, str):
            return 0.0, f"{_named(candidate)} would break {found}"
        offer, objective = found
        j = self.objective.j(offer.forecast)
        gain = plain_j / j
        account = ask.account
        key = (candidate.target, candidate.method, candidate.drafter)
        risk = account.risk(plain_j)
        wins = j < (plain_j if account.last == key else plain_j / self.min_speedup)
        chance = self._offer(candidate, drawn(seen, rng), ask, plain)
        if chance is None or isinstance(chance, str):
            sort = j
        else:
            sort = self.objective.j(chance[0].forecast)
        if wins and risk >= 0:
            return _Choice(
                sort * _STICK if account.last == key else sort, candidate, offer, objective, gain
            )
        if wins:
            return gain, f"{_named(candidate)} has lately lost more than its figures say"
        if sort < plain_j / self.min_speedup and not isinstance(chance, str) and chance:
            offer, objective = chance
            loss = self._trial_loss(candidate, seen, ask, offer, plain)
            if loss <= risk:
                return _Choice(sort, candidate, offer, objective, gain, trial=True)
        return gain, _loses(candidate, gain)

    def _offer(
        self, candidate: Candidate, seen: Snapshot, ask: Ask, plain: Forecast
    ) -> tuple[Offer, Objective] | str | None:
        """The best offer that keeps every limit and the objective whose K it has; the limit that
        all would break; ``None`` where the figures don't suffice."""
        forecaster, broken = FORECASTS[candidate.method], ""
        for weight in (1.0, *_WEIGHTS):
            objective = self.objective
            if weight != 1.0:
                objective = replace(objective, usd_per_second=objective.usd_per_second / weight)
            offer = forecaster(seen, ask, objective)
            if offer is None:
                return None
            breaks = self._breaks(offer.forecast, plain, ask)
            if breaks is None:
                return offer, objective
            broken = broken or breaks
            if offer.forecast.dollars is None:
                break
        return broken

    def _breaks(self, forecast: Forecast, plain: Forecast, ask: Ask) -> str | None:
        """The limit that a plan would break, in a few words."""
        if ask.seconds is not None and forecast.seconds > ask.seconds >= plain.seconds:
            return "the deadline"
        if ask.dollars is not None and (forecast.dollars is None or forecast.dollars > ask.dollars):
            return "the most it may cost"
        priced = forecast.dollars is not None and plain.dollars is not None
        if priced and ask.account.dollars < 0 and (forecast.dollars or 0) > (plain.dollars or 0):
            return "max_cost_ratio, which requests before it have used up"
        return self.objective.broken(forecast, plain)

    def _trial_loss(
        self, candidate: Candidate, seen: Snapshot, ask: Ask, offer: Offer, plain: Forecast
    ) -> float:
        """J that a trial is expected to lose: its rounds against what they commit, and a stream
        started anew; of a method without rounds, the whole request's."""
        tokens = ask.answer_tokens(seen)
        if not offer.k or candidate.method is not Method.SCORE:
            return max(0.0, self.objective.j(offer.forecast) - self.objective.j(plain))
        k = min(max(offer.k, _TRIAL_K[0]), _TRIAL_K[1])
        round_ = best_round(seen, ask.context, self.objective, limit=k)
        ttft_s, tpot_s = plain_pace(seen)
        weigh = self.objective.weigh
        each = (tpot_s or plain.seconds / tokens) + weigh(seen.usd_out)
        again = (ttft_s or 0.0) + weigh(seen.usd_round_prompt) * ask.context
        return TRIAL_ROUNDS * max(0.0, round_.j - round_.tokens * each) + again

    def _planned(self, choice: _Choice, plain: Forecast, reason: str) -> Plan:
        candidate, offer = choice.candidate, choice.offer
        k = offer.k
        if choice.trial and k and candidate.method is Method.SCORE:
            k = min(max(k, _TRIAL_K[0]), _TRIAL_K[1])
        other = choice.objective.usd_per_second
        return Plan(
            candidate.method,
            candidate.drafter,
            k,
            reason,
            target=candidate.target,
            lanes=offer.lanes,
            chunk=offer.chunk,
            worth=offer.worth,
            max_rounds=offer.max_rounds or self.max_rounds,
            predicted=offer.forecast,
            plain=plain,
            trial=choice.trial,
            usd_per_second=other if other != self.objective.usd_per_second else None,
        )

    def _plain(self, plain: Forecast, reason: str) -> Plan:
        return Plan(Method.PLAIN, None, 0, reason, predicted=plain, plain=plain)

    def settle(self, account: Account, plan: Plan, spent: Forecast, plain: Forecast) -> Account:
        """The account after a request that was planned so: what it took, and what a plain call
        would have taken for the same answer."""
        allowed = None
        if self.objective.max_cost_ratio and plain.dollars is not None:
            allowed = self.objective.max_cost_ratio * plain.dollars
        ended = Settled(
            plan.key,
            self.objective.j(spent),
            self.objective.j(plain),
            spent.dollars,
            allowed,
            plain=plan.method is Method.PLAIN and plan.target is None,
            yardstick=plan.yardstick,
        )
        return account.settle(ended, self.exploration)

    # --- a round --------------------------------------------------------------------------------

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """K by the marginal rule on the pooled survival updated by this request's own rounds; 0
        when the rest of the answer would come sooner from a plain stream, its start included. A
        trial that does not win after a few rounds ends."""
        plan = view.plan
        trial = plan is not None and plan.trial
        most = plan.max_rounds if plan is not None else self.max_rounds
        if most and view.rounds >= most:
            return 0
        if plan is not None and plan.method is Method.PREFIX:
            return 1  # Nothing is lost by going on: each lane is weighed for itself (``worth``).
        if plan is not None and plan.method is not Method.SCORE:
            return plan.chunk or plan.k  # When to stop is the method's own matter.
        objective = self.objective
        if plan is not None and plan.usd_per_second is not None:
            objective = replace(objective, usd_per_second=plan.usd_per_second)
        limit = objective.max_num_speculative_tokens
        if trial and view.rounds < TRIAL_ROUNDS and plan is not None:
            limit = min(limit, max(plan.k, 1))
        if view.remaining is not None:
            limit = min(limit, max(view.remaining - 1, 1))
        if limit < 1:
            return 0
        context = view.context or snapshot.context
        if snapshot.verify_s is None and snapshot.round_law is None:
            if view.verify_s is None:
                return 1 if view.rounds < _MIN_ROUNDS else 0
            snapshot = replace(snapshot, verify_s=view.verify_s)
        best = best_round(
            snapshot,
            context,
            objective,
            limit=limit,
            own=view.own,
            timed=self._timed(view, snapshot, context),
            draft_s=view.draft_s,
        )
        ttft_s, tpot_s = plain_pace(snapshot)
        if trial and view.rounds < TRIAL_ROUNDS and plan is not None:
            return limit
        if tpot_s is None or view.rounds < _MIN_ROUNDS:
            return max(best.k, 1)
        weigh = self.objective.weigh
        paid = (best.j - best.seconds) * objective.usd_per_second
        ours = (best.seconds + weigh(paid)) / best.tokens
        theirs = tpot_s + weigh(snapshot.usd_out)
        if trial and ours > theirs:
            return 0
        answer = snapshot.pace.answer_tokens or 0.0
        left = max(answer - view.committed, 16.0)
        if view.remaining is not None:
            left = min(left, view.remaining)
        again = (ttft_s or 0.0) + weigh(snapshot.usd_round_prompt) * context
        return 0 if (ours - theirs) * left > again else max(best.k, 1)

    def _timed(self, view: RoundView, snapshot: Snapshot, context: float) -> float:
        """This request's own round time as a factor on the figures', which count as a few
        rounds."""
        law = snapshot.round_law
        k = view.last[0] if view.last is not None else view.plan.k if view.plan else 0
        usual = snapshot.verify_s if law is None else law.at(context, k).mean
        if view.verify_s is None or not usual:
            return 1.0
        own = min(view.rounds, 8)
        return (own * view.verify_s / usual + _POOLED_ROUNDS) / (own + _POOLED_ROUNDS)


def _named(candidate: Candidate) -> str:
    with_ = f" with {candidate.drafter!r}" if candidate.drafter else ""
    at = f" at {candidate.target}" if candidate.target else ""
    return f"{candidate.method}{with_}{at}"


def _no_reason(options: Candidates) -> str:
    return next((why for _, why in options.reasons), "")


def _pace(choice: _Choice) -> str:
    k = f", K = {choice.offer.k}" if choice.offer.k else ""
    return f"{_named(choice.candidate)}{k}"


def _reason(choice: _Choice, plain: Forecast) -> str:
    predicted = choice.offer.forecast
    return (
        f"{_pace(choice)} is predicted to take {_amount(predicted)} against plain's "
        f"{_amount(plain)}"
    )


def _trial_reason(choice: _Choice) -> str:
    return (
        f"{_pace(choice)} is tried: it is predicted at {choice.gain:.2f} times the plain pace, and "
        "may be better than that"
    )


def _loses(candidate: Candidate, gain: float) -> str:
    return f"{_named(candidate)} is predicted to run at {gain:.2f} times the plain pace"


def _amount(forecast: Forecast) -> str:
    dollars = "" if forecast.dollars is None else f" and ${forecast.dollars:.2g}"
    return f"{forecast.seconds:.2g} s{dollars}"

"""``adaptive``: speculate only while the measured figures say that it pays.

Asks every method's forecaster (``forecast``) what the request would take with it, and compares that
with plain under the objective; K = 0 is a normal answer. Which of several plans, and whether one
that isn't expected to win is tried, is Thompson sampling, within what the ``account`` says may
still be lost. What each round does then is ``next_round``'s matter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specroute.acceptance import Lossy
from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Snapshot
from specroute.measure.crowd import Crowd
from specroute.policy.account import Account, Settled
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.policy.chance import drawn
from specroute.policy.crowd import gain_of_all
from specroute.policy.forecast import best_round, plain_pace
from specroute.policy.forecasts import FORECASTS
from specroute.policy.next_round import TRIAL_ROUNDS, next_k
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer
from specroute.policy.targets import choose_target
from specroute.policy.temperature import choose_temperature
from specroute.types import Method

_TRIAL_K = (2, 16)
"""The smallest and the largest K of a trial."""
_HARD = ("the deadline", "the most it may cost")
"""Limits that no trial may break either, whatever it may turn out to be."""
_BY_FAR = 1.5
"""A plan that exceeds a limit by more than this isn't looked at again with drawn figures."""
_SHORT_OF = 0.01
"""By how much the mean is kept below max_cost_ratio."""
_STICK = 0.98
"""What was done last is kept while nothing is better by more than this."""
_OF_ALL = (0.97, 1.03)
"""The least pace of all requests at a target against plain's, to go on speculating, and to begin
to."""
_WEIGHTS = (1000.0, 30.0, 6.0, 2.0)
"""Factors on λ that are tried where the best settings would cost too much,"""
_LIGHTER = (0.001, 0.03, 0.15, 0.5)
"""or take too long."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One plan that may be chosen: ``sort`` is its J for the choice, with its chance."""

    sort: float
    candidate: Candidate
    offer: Offer
    objective: Objective
    j: float
    """As expected."""
    gain: float
    """J of plain over its own."""
    trial: bool = False
    strays: float = 0.0
    """J expected beyond the best choice's."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """A plan that keeps no limit: which, and by how many times it is exceeded at least."""

    limit: str
    by: float

    def __str__(self) -> str:
        return self.limit


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
    tune_draft_temperature: bool = False
    """Drafts that are drawn may be drawn at another temperature than the request's."""
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
        plan = self._plan(ask, options, figures, rng)
        beside = _beside(figures(PLAIN).crowd) if plan.plain is not None else ""
        return replace(plan, reason=beside + plan.reason) if beside else plan

    def _plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
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
            found = self._weighed(candidate, figures(candidate), ask, yardstick, rng)
            if isinstance(found, tuple):
                said = max(said, found)
            else:
                choices.append(found)
        if not choices:
            return self._plain(plain, said[1] or "its rounds are timed first")
        best, account = self._drawn(choices, ask.account), ask.account
        if best.trial:
            return self._planned(best, plain, _trial_reason(best))
        at = None
        if self.tune_draft_temperature and ask.temperature is not None:
            seen = figures(best.candidate).by_temperature
            at = choose_temperature(ask.temperature, seen, rng)
        if account.yardstick + plain_j <= self.plain_share * account.spent:
            said_why = f"plain's pace is measured anew; {_reason(best, plain)}"
            return replace(self._plain(plain, said_why), yardstick=True)
        plan = self._planned(best, plain, _reason(best, plain))
        return plan if at is None else replace(plan, draft_temperature=at)

    def _drawn(self, choices: list[_Choice], account: Account) -> _Choice:
        """The choice with the least drawn J. One that wins, but less than another is expected to,
        is taken while what that costs stays within the share for exploration."""
        drawn_best = min(choices, key=lambda choice: choice.sort)
        wins = [choice for choice in choices if not choice.trial]
        if not wins:
            return drawn_best
        best = min(wins, key=lambda choice: choice.j)
        strays = drawn_best.j - best.j
        if strays <= 0:
            return drawn_best
        if account.strayed + strays > self.exploration * account.spent:
            return best
        return replace(drawn_best, strays=strays)

    def _weighed(
        self,
        candidate: Candidate,
        seen: Snapshot,
        ask: Ask,
        yardstick: Offer,
        rng: random.Random,
    ) -> _Choice | tuple[float, str]:
        """A candidate as a choice, or (its gain, one sentence why it is none)."""
        plain, plain_j = yardstick.forecast, self.objective.j(yardstick.forecast)
        found = self._offer(candidate, seen, ask, plain)
        if found is None:
            return 0.0, ""
        account = ask.account
        risk = account.risk(plain_j)
        gain, said, j = 0.0, f"{_named(candidate)} would break {found}", math.inf
        if isinstance(found, tuple):
            offer, objective = found
            j = self.objective.j(offer.forecast)
            gain, said = plain_j / j, _loses(candidate, plain_j / j)
            last = account.last == (candidate.target, candidate.method, candidate.drafter)
            of_all = self._gain_of_all(offer, yardstick, ask.answer_tokens(seen))
            if of_all < (_OF_ALL[0] if last else _OF_ALL[1]) and gain > 1:
                return gain, _lowers(candidate, gain, of_all)
            if j < (plain_j if last else plain_j / self.min_speedup):
                if account.trying and untried(candidate, seen):
                    return gain, f"{_named(candidate)} is being tried by another request"
                if risk < 0:
                    return gain, f"{_named(candidate)} has lately lost more than its figures say"
                sort = j
                if account.strayed < self.exploration * account.spent:
                    sort = min(self._drawn_j(candidate, seen, ask, plain, rng), 2 * j)
                sort *= _STICK if last else 1.0
                return _Choice(sort, candidate, offer, objective, j, gain)
        elif found.limit in _HARD or _hopeless(found, seen):
            return gain, said
        if risk > 0 and not account.trying:
            chance = self._offer(candidate, drawn(seen, rng), ask, plain)
            if isinstance(chance, tuple):
                offer, objective = chance
                sort = self.objective.j(offer.forecast)
                loss = self._trial_loss(candidate, seen, ask, offer, plain)
                tried = self.objective.j(loss) <= risk and self._affords(loss, plain, account)
                of_all = self._gain_of_all(offer, yardstick, ask.answer_tokens(seen))
                tried = tried and of_all > _OF_ALL[1]
                if sort < plain_j / self.min_speedup and tried:
                    # A trial that loses is a few rounds, and plain from there on. What a server
                    # caches is known after one, so that one is no question of straying.
                    j = 0.0 if _unpriced(seen) else min(j, plain_j + self.objective.j(loss))
                    return _Choice(sort, candidate, offer, objective, j, gain, trial=True)
        return gain, said

    def _gain_of_all(self, offer: Offer, plain: Offer, tokens: float) -> float:
        """By how many times all requests at the target are better off with a plan than with
        plain."""
        j, plain_j = self.objective.j(offer.forecast), self.objective.j(plain.forecast)
        return gain_of_all(tokens, plain_j, plain.lost, j, offer.lost)

    def _drawn_j(
        self,
        candidate: Candidate,
        seen: Snapshot,
        ask: Ask,
        plain: Forecast,
        rng: random.Random,
    ) -> float:
        chance = self._offer(candidate, drawn(seen, rng), ask, plain)
        return self.objective.j(chance[0].forecast) if isinstance(chance, tuple) else math.inf

    def _offer(
        self, candidate: Candidate, seen: Snapshot, ask: Ask, plain: Forecast
    ) -> tuple[Offer, Objective] | _Broken | None:
        """The best offer that keeps every limit and the objective whose K it has; the limit that
        all would break; ``None`` where the figures don't suffice."""
        offer = FORECASTS[candidate.method](seen, ask, self.objective)
        if offer is None:
            return None
        broken = self._breaks(offer.forecast, plain, ask)
        if broken is None:
            return offer, self.objective
        if broken in _HARD or offer.forecast.dollars is None:
            return _Broken(broken, 1.0)
        # The limit's own side alone, then what lies between: few plans get past the first.
        found: tuple[Offer, Objective] | None = None
        for weight in _WEIGHTS if broken.startswith("max_cost") else _LIGHTER:
            usd = self.objective.usd_per_second / weight
            objective = replace(self.objective, usd_per_second=usd)
            offer = FORECASTS[candidate.method](seen, ask, objective)
            if offer is None or self._breaks(offer.forecast, plain, ask) is not None:
                break
            found = offer, objective
        if found is not None:
            return found
        by = self.objective.excess(offer.forecast, plain) if offer is not None else 1.0
        return _Broken(broken, by)

    def _breaks(self, forecast: Forecast, plain: Forecast, ask: Ask) -> str | None:
        """The limit that a plan would break, in a few words."""
        if ask.seconds is not None and forecast.seconds > ask.seconds >= plain.seconds:
            return _HARD[0]
        if ask.dollars is not None and (forecast.dollars is None or forecast.dollars > ask.dollars):
            return _HARD[1]
        if self.objective.max_cost_ratio and forecast.dollars is not None:
            most = plain.dollars
            if most is not None and ask.account.purse(most) < 0 and forecast.dollars > most:
                return "max_cost_ratio, which requests before it have used up"
        return self.objective.broken(forecast, plain)

    def _affords(self, loss: Forecast, plain: Forecast, account: Account) -> bool:
        """Whether what a trial may lose in dollars is left of what max_cost_ratio allowed."""
        if not self.objective.max_cost_ratio or loss.dollars is None or plain.dollars is None:
            return True
        return loss.dollars <= account.purse(plain.dollars)

    def _trial_loss(
        self, candidate: Candidate, seen: Snapshot, ask: Ask, offer: Offer, plain: Forecast
    ) -> Forecast:
        """What a trial is expected to lose: its rounds against what they commit, and a stream
        started anew; of a method without rounds, the whole request's."""
        if not offer.k or candidate.method is not Method.SCORE:
            usual = FORECASTS[candidate.method](seen, ask, self.objective) or offer
            found, dollars = usual.forecast, None
            if found.dollars is not None and plain.dollars is not None:
                dollars = max(0.0, found.dollars - plain.dollars)
            return Forecast(max(0.0, found.seconds - plain.seconds), dollars)
        k = self._trial_k(offer.k)
        tried = best_round(seen, ask.context, self.objective, limit=k)
        ttft_s, tpot_s = plain_pace(seen)
        each = tpot_s or plain.seconds / ask.answer_tokens(seen)
        seconds = TRIAL_ROUNDS * max(0.0, tried.seconds - tried.tokens * each) + (ttft_s or 0.0)
        if seen.usd_in is None or seen.usd_out is None:
            return Forecast(seconds)
        prompt = (seen.usd_round_prompt or 0.0) * ask.context
        paid = tried.prompts * (prompt + seen.usd_out) + tried.k * seen.usd_in
        dollars = TRIAL_ROUNDS * max(0.0, paid - tried.tokens * seen.usd_out) + prompt
        return Forecast(seconds, dollars)

    def _trial_k(self, k: int) -> int:
        most = self.objective.max_num_speculative_tokens
        return min(max(k, _TRIAL_K[0]), _TRIAL_K[1], max(most, 1))

    def _planned(self, choice: _Choice, plain: Forecast, reason: str) -> Plan:
        candidate, offer = choice.candidate, choice.offer
        k = offer.k
        if choice.trial and k and candidate.method is Method.SCORE:
            k = self._trial_k(k)
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
            depth=offer.depth,
            max_rounds=offer.max_rounds or self.max_rounds,
            predicted=offer.forecast,
            plain=plain,
            trial=choice.trial,
            strays=choice.strays,
            usd_per_second=other if other != self.objective.usd_per_second else None,
        )

    def _plain(self, plain: Forecast, reason: str) -> Plan:
        return Plan(Method.PLAIN, None, 0, reason, predicted=plain, plain=plain)

    def target(self, forecasts: Sequence[Forecast | None], rng: random.Random) -> int:
        """Which of interchangeable targets to ask, by forecasts of a plain call to each."""
        return choose_target(
            forecasts,
            self.objective,
            rng,
            min_speedup=self.min_speedup,
            share=self.plain_share,
        )

    def settle(self, account: Account, plan: Plan, spent: Forecast, plain: Forecast) -> Account:
        """The account after a request that was planned so: what it took, and what a plain call
        would have taken for the same answer."""
        ratio = self.objective.max_cost_ratio
        ended = Settled(
            plan.key,
            self.objective.j(spent),
            self.objective.j(plain),
            spent.dollars,
            plain.dollars,
            max(ratio - _SHORT_OF, 1 + self.exploration) if ratio else 0.0,
            plain=plan.method is Method.PLAIN and plan.target is None,
            yardstick=plan.yardstick,
            strays=plan.strays,
        )
        return account.settle(ended, self.exploration)

    # --- a round --------------------------------------------------------------------------------

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """As :func:`next_round.next_k` says."""
        return next_k(view, snapshot, self.objective, self.max_rounds)


def untried(candidate: Candidate, seen: Snapshot) -> bool:
    """Whether a plan's forecast rests on hope alone: no draft of it was ever judged."""
    return candidate.method is Method.SCORE and seen.acceptance.weight < 1


def _hopeless(broken: _Broken, seen: Snapshot) -> bool:
    """Whether no draw would bring a plan within its limit: one that is exceeded by far, and not
    for want of knowing what the server caches."""
    return broken.by > _BY_FAR and not _unpriced(seen)


def _unpriced(seen: Snapshot) -> bool:
    """Whether nothing is known yet of what the server's cache takes off a round's price."""
    return seen.round_cached is None and seen.usd_cached is not None


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


def _lowers(candidate: Candidate, own: float, of_all: float) -> str:
    return (
        f"{_named(candidate)} would answer this at {own:.2f} times the plain pace, and all of them "
        f"at {of_all:.2f} times"
    )


def _beside(crowd: Crowd) -> str:
    """The load that a plan was made at."""
    if crowd.others < 1:
        return ""
    at = f" at {crowd.target}" if crowd.target else ""
    return f"{crowd.others + 1} requests in flight{at}: "


def _amount(forecast: Forecast) -> str:
    dollars = "" if forecast.dollars is None else f" and ${forecast.dollars:.2g}"
    return f"{forecast.seconds:.2g} s{dollars}"

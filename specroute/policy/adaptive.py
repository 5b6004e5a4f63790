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
from specroute.policy import reasons
from specroute.policy.account import Account, Settled
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.policy.chance import drawn, drawn_pace
from specroute.policy.crowd import gain_of_all, joins
from specroute.policy.forecasts import FORECASTS
from specroute.policy.next_round import next_k
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer
from specroute.policy.targets import choose_target
from specroute.policy.temperature import choose_temperature
from specroute.policy.trial import (
    BY_ACCEPTANCE,
    FIRST_K,
    ROUNDS,
    for_nothing,
    fresh,
    may_lose_first,
    most_of_a_round,
    of_request,
    rounds_for,
    trial_k,
)
from specroute.policy.within import HARD, hopeless, unpriced, within
from specroute.types import Method

_TRIAL_LANES = 2
"""Lanes of a trial, at most."""
STRAYS = 0.5
"""Plain requests that may be spent beyond the best plans, more than the share for it: on other
plans and on plain calls, each. They say early which is the best."""
_SHORT_OF = 0.01
"""By how much the mean is kept below max_cost_ratio."""
_STICK = 0.98
"""What was done last is kept while nothing is better by more than this."""
_OF_ALL = (0.97, 1.03)
"""The least pace of all requests at a target against plain's, to go on speculating, and to begin
to."""


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
    tries: int = 0
    """Its rounds."""
    strays: float = 0.0
    """J expected beyond the best choice's."""
    behind_s: float = math.inf
    """How many seconds later than plain a trial may end, where its class is new."""
    expected: Forecast | None = None
    """Of a trial, whose offer is a drawn one,"""
    risk: Forecast | None = None
    """and what a round of it may lose."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The presets ``latency``, ``balanced``, ``cost`` and ``exact-only``."""

    objective: Objective = field(default_factory=Objective)
    min_speedup: float = 1.02
    """Speculation starts where it is predicted to win by this; it goes on while it wins at all."""
    exploration: float = 0.005
    """The share of all J that trials may lose; a few times that over the first requests."""
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
        beside = reasons.beside(figures(PLAIN).crowd) if plan.plain is not None else ""
        return replace(plan, reason=beside + plan.reason) if beside else plan

    def _plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        able = [each for each in options.plans if each.method in FORECASTS and each != PLAIN]
        if not able:
            return Plan(Method.PLAIN, None, 0, reasons.no_reason(options))
        yardstick = FORECASTS[Method.PLAIN](figures(PLAIN), ask, self.objective)
        if yardstick is None:
            return Plan(Method.PLAIN, None, 0, "the target's plain pace is measured first")
        plain, plain_j = yardstick.forecast, self.objective.j(yardstick.forecast)
        # What follows takes a while, which in a crowd all others wait for.
        waits_s = figures(PLAIN).crowd.waits_s
        if waits_s >= plain.seconds:
            return self._plain(plain, reasons.kept_waiting(waits_s, plain))
        if not any(joins(ask.room(each)) for each in able):
            return self._plain(plain, reasons.all_full(ask.room(able[0]), plain))
        choices: list[_Choice] = []
        said: tuple[float, str] = (0.0, "")
        for candidate in able:
            found = self._weighed(candidate, figures(candidate), ask, yardstick, rng)
            if isinstance(found, tuple):
                said = max(said, found)
            else:
                choices.append(found)
        if not choices:
            why = said[1] or "its rounds are timed first"
            return self._plain(plain, f"{why}; {reasons.expected(plain)}")
        best, account = self._drawn(choices, ask, yardstick, figures(PLAIN), rng), ask.account
        if best.candidate == PLAIN:
            said_why = (
                f"plain's pace is timed again, since it may be better; {reasons.wins(best.gain)}"
            )
            return replace(self._plain(plain, said_why), strays=best.strays)
        if best.trial:
            return self._planned(
                best,
                plain,
                reasons.tried(
                    best.candidate, best.offer, best.gain, plain, new=best.behind_s < math.inf
                ),
            )
        at = None
        if self.tune_draft_temperature and ask.temperature is not None:
            seen = figures(best.candidate).by_temperature
            at = choose_temperature(ask.temperature, seen, rng)
        why = reasons.chosen(best.candidate, best.offer, plain)
        if account.yardstick + plain_j <= self.plain_share * account.spent:
            return replace(
                self._plain(plain, f"plain's pace is measured anew; {why}"), yardstick=True
            )
        plan = self._planned(best, plain, why)
        return plan if at is None else replace(plan, draft_temperature=at)

    def _drawn(
        self,
        choices: list[_Choice],
        ask: Ask,
        plain: Offer,
        plain_seen: Snapshot,
        rng: random.Random,
    ) -> _Choice:
        """The choice with the least drawn J, a plain call's among them: its pace, too, is only
        known so well. What is expected to be worse than the best is taken while what that costs
        stays within the share for it."""
        wins = [choice for choice in choices if not choice.trial]
        if not wins:
            return min(choices, key=lambda choice: choice.sort)
        best, account = min(wins, key=lambda choice: choice.j), ask.account
        plain_j = self.objective.j(plain.forecast)
        drawn_best = min(choices, key=lambda choice: choice.sort)
        left = self.plain_share * account.spent + STRAYS * plain_j - account.timed
        if plain_j - best.j <= left:
            sort = plain_j + (drawn_pace(plain_seen, rng) - 1) * plain.forecast.seconds
            if sort < drawn_best.sort:
                found = _Choice(sort, PLAIN, plain, self.objective, plain_j, plain_j / best.j)
                return replace(found, strays=max(plain_j - best.j, 0.0))
        strays = drawn_best.j - best.j
        if strays <= 0:
            return drawn_best
        stray = strays <= self._may_stray(account, plain_j)
        return replace(drawn_best, strays=strays) if stray else best

    def _may_stray(self, account: Account, plain_j: float) -> float:
        """J that may yet be spent beyond the best plans'."""
        return self.exploration * account.spent + STRAYS * plain_j - account.strayed

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
        found = within(candidate, seen, ask, plain, self.objective)
        if found is None:
            return 0.0, ""
        account = ask.account
        risk = account.allowance
        gain, said, j = 0.0, f"{reasons.named(candidate)} would break {found}", math.inf
        if isinstance(found, tuple):
            offer, objective = found
            j = self.objective.j(offer.forecast)
            gain, said = plain_j / j, reasons.loses(candidate, plain_j / j)
            if not joins(seen.room):
                return gain, reasons.full(candidate, gain, seen.room)
            last = account.last == (candidate.target, candidate.method, candidate.drafter)
            of_all = self._gain_of_all(offer, yardstick, ask.answer_tokens(seen))
            if of_all < (_OF_ALL[0] if last else _OF_ALL[1]) and gain > 1:
                return gain, reasons.lowers(candidate, gain, of_all)
            wins = j < (plain_j if last else plain_j / self.min_speedup)
            if wins and untried(candidate, seen):
                said = reasons.hopes(candidate, gain)
            elif wins:
                if risk < 0:
                    return (
                        gain,
                        f"{reasons.named(candidate)} has lately lost more than was predicted",
                    )
                if fresh(candidate, seen):
                    return self._first(
                        _Choice(j, candidate, offer, objective, j, gain), seen, ask, plain
                    )
                sort = j
                if self._may_stray(account, plain_j) > 0:
                    sort = min(self._drawn_j(candidate, seen, ask, plain, rng), 2 * j)
                sort *= _STICK if last else 1.0
                return _Choice(sort, candidate, offer, objective, j, gain)
        elif found.limit in HARD or hopeless(found, seen) or not joins(seen.room):
            return gain, said
        if risk > 0 and account.trying:
            said = f"{said or reasons.named(candidate)}; nothing is tried out now: {account.trying}"
        elif risk <= 0 and gain > 1 and untried(candidate, seen):
            said = f"{said}, which was never tried, and no loss may be risked yet"
        elif risk > 0:
            chance = within(candidate, drawn(seen, rng), ask, plain, self.objective)
            if isinstance(chance, tuple):
                offer, objective = chance
                sort = self.objective.j(offer.forecast)
                loss = self._may_lose(candidate, seen, ask, offer, plain)
                lost = self.objective.j(loss)
                tried = lost <= risk and self._affords(loss, plain, account)
                of_all = self._gain_of_all(offer, yardstick, ask.answer_tokens(seen))
                tried = tried and of_all > _OF_ALL[1]
                if sort < plain_j / self.min_speedup and tried:
                    # A trial that loses is a few rounds, and plain from there on. What a server
                    # caches is known after one, so that one is no question of straying.
                    j = 0.0 if unpriced(seen) else min(j, plain_j + lost)
                    tries = rounds_for(lost, risk)
                    expected = self._expected(candidate, seen, ask, plain.plus(loss))
                    tries_it = _Choice(sort, candidate, offer, objective, j, gain, True, tries)
                    return replace(tries_it, expected=expected, risk=loss)
        return gain, said

    def _first(
        self, choice: _Choice, seen: Snapshot, ask: Ask, plain: Forecast
    ) -> _Choice | tuple[float, str]:
        """A plan that wins by what other classes have shown, as a trial: a few short rounds, which
        lose little if this class is another matter; ``next_round`` goes on while they win."""
        candidate, offer, account = choice.candidate, choice.offer, ask.account
        said = (
            f"{reasons.named(candidate)} is predicted at {choice.gain:.2f} times the plain pace, "
            "but little is known of its class yet"
        )
        if account.trying:
            return choice.gain, f"{said}; nothing is tried out now: {account.trying}"
        if candidate.method is Method.SCORE and offer.k:
            offer = replace(offer, k=min(offer.k, FIRST_K))
            loss = self._may_lose(candidate, seen, ask, offer, plain)
        else:
            nothing = for_nothing(candidate, seen, ask, self.objective)
            loss = of_request(replace(offer, forecast=nothing), plain)
        lost = self.objective.j(loss)
        may = may_lose_first(ask, self.objective.j(plain), self.exploration)
        paying = max(account, ask.together, key=lambda each: each.dollars)
        if lost > may or not self._affords(loss, plain, paying):
            return choice.gain, f"{said}, and finding out could lose more than may be lost"
        tries = ROUNDS if lost <= 0 else min(ROUNDS, int(may / lost))
        return replace(
            choice,
            offer=offer,
            trial=True,
            tries=tries,
            behind_s=may,
            expected=choice.offer.forecast,
            risk=loss,
        )

    def _expected(self, candidate: Candidate, seen: Snapshot, ask: Ask, most: Forecast) -> Forecast:
        """What a trial is expected to take by what is known, not by what was drawn; where it would
        lose, it is left for a plain stream."""
        offer = FORECASTS[candidate.method](seen, ask, self.objective)
        if offer is None or self.objective.j(offer.forecast) > self.objective.j(most):
            return most
        return offer.forecast

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
        chance = within(candidate, drawn(seen, rng), ask, plain, self.objective)
        return self.objective.j(chance[0].forecast) if isinstance(chance, tuple) else math.inf

    def _affords(self, loss: Forecast, plain: Forecast, account: Account) -> bool:
        """Whether what a trial may lose in dollars is left of what max_cost_ratio allowed."""
        if not self.objective.max_cost_ratio or loss.dollars is None or plain.dollars is None:
            return True
        return loss.dollars <= account.dollars

    def _may_lose(
        self, candidate: Candidate, seen: Snapshot, ask: Ask, offer: Offer, plain: Forecast
    ) -> Forecast:
        if candidate.method is Method.SCORE and offer.k:
            k = trial_k(offer.k, self.objective)
            loss = most_of_a_round(seen, ask, k, plain, offer.depth)
            there = None
            if candidate.target is not None:  # The rest of the answer comes from there, too.
                there = FORECASTS[Method.PLAIN](seen, ask, self.objective)
            return loss if there is None else loss.plus(of_request(there, plain))
        return of_request(FORECASTS[candidate.method](seen, ask, self.objective) or offer, plain)

    def _planned(self, choice: _Choice, plain: Forecast, reason: str) -> Plan:
        candidate, offer = choice.candidate, choice.offer
        k = offer.k
        if choice.trial and k and candidate.method is Method.SCORE:
            k = trial_k(k, self.objective)
        other = choice.objective.usd_per_second
        return Plan(
            candidate.method,
            candidate.drafter,
            k,
            reason,
            target=candidate.target,
            lanes=min(offer.lanes, _TRIAL_LANES) if choice.trial else offer.lanes,
            chunk=offer.chunk,
            worth=offer.worth,
            depth=offer.depth,
            max_rounds=offer.max_rounds or self.max_rounds,
            predicted=choice.expected or offer.forecast,
            plain=plain,
            trial=choice.trial,
            tries=choice.tries,
            behind_s=choice.behind_s,
            risk=None if choice.risk is None else choice.risk.times(max(choice.tries, 1)),
            strays=choice.strays,
            usd_per_second=other if other != self.objective.usd_per_second else None,
        )

    def plain(self, ask: Ask, figures: Figures, reason: str) -> Plan | None:
        """A plain call for ``reason``, with its own forecast; ``None`` without one."""
        offer = FORECASTS[Method.PLAIN](figures(PLAIN), ask, self.objective)
        return None if offer is None else self._plain(offer.forecast, reason)

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
    if candidate.method is Method.PREDICT:
        return seen.predicted is None
    return candidate.method in BY_ACCEPTANCE and seen.acceptance.weight < 1

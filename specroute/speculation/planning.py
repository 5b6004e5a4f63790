"""Which plan a request gets: its policy is asked, with what is possible and what was measured.

Knows the policies in use and their accounts. Opens nothing and calls nobody.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

from specroute.candidates import PLAIN, Candidate, Candidates, Judge, Trust, candidates
from specroute.config import (
    Config,
    ModelConfig,
    PolicyConfig,
)
from specroute.limits.purse import current
from specroute.measure import Measurements, Snapshot
from specroute.measure.together import Room
from specroute.meter import priced
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive, untried
from specroute.policy.base import Accounting, Ask, Choosing, Figures, Forecast, Plan, Policy
from specroute.policy.checked import checked_plan, checked_target
from specroute.policy.forecast import plain_call
from specroute.policy.make import make_policy
from specroute.policy.objective import Objective
from specroute.policy.reasons import alike
from specroute.policy.trial import fresh
from specroute.pool import Pool
from specroute.reporting import ReportHandle
from specroute.request import TextRequest
from specroute.session import (
    measured_as,
)
from specroute.sharing.accounts import Accounts, Alone, Change, Leave
from specroute.speculation.moment import Moment
from specroute.speculation.reckoning import Reckoning
from specroute.target.target import Target
from specroute.types import Exactness, Method, Report, TargetRef

log = logging.getLogger("specroute")

EVERY = ""
"""The traffic class of all requests: its account is what all classes at a target have together."""
_MOST_POLICIES = 256
"""Policies that are kept (requests may bring their own),"""
_MOST_ACCOUNTS = 4096
"""and traffic classes of each."""


@dataclass(slots=True)
class Chosen:
    """A policy, the loosest label it allows, and its accounts by (target, traffic class)."""

    policy: Policy
    floor: Exactness
    name: str = ""
    """What its accounts go by among workers that keep them together."""
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    under_way: dict[tuple[str, str], list[Plan]] = field(default_factory=dict)
    """Of each class, the plans under way that try something out,"""
    tried: dict[tuple[str, str], list[Plan]] = field(default_factory=dict)
    """and those that have: the rest of their answers is plain, and what they lost isn't entered
    yet."""
    moment: Moment = field(default_factory=Moment)

    def account(self, key: tuple[str, str]) -> Account:
        """A class's account as it stands, with what is under way."""
        found, plans = self._less(key, self.tried.get(key, ())), self.under_way.get(key)
        if not plans:
            return found
        return found.under_way(
            any(not plan.yardstick and not plan.strays for plan in plans),
            any(plan.yardstick for plan in plans),
            any(plan.strays for plan in plans),
        )

    def together(self, target: str) -> Account:
        """What all classes have together, without what those that are new may be losing now. Each
        may lose so little that many can be tried at a time."""
        key = (target, EVERY)
        return self._less(key, [*self.under_way.get(key, ()), *self.tried.get(key, ())])

    def _less(self, key: tuple[str, str], plans: Sequence[Plan]) -> Account:
        found = self.accounts.get(key, Account())
        for plan in plans:
            if plan.risk is not None:
                found = found.less(_j(self, plan.risk), plan.risk.dollars or 0.0)
        return found

    def begin(self, key: tuple[str, str], plan: Plan) -> Callable[[object], None]:
        """A plan that tries something out is under way; what to call once it has ended."""
        self.under_way.setdefault(key, []).append(plan)

        def end(_: object) -> None:
            for kept in (self.under_way, self.tried):
                _without(kept, key, plan)

        return end

    def has_tried(self, plan: Plan, *keys: tuple[str, str]) -> None:
        """Its rounds are over, though its answer may go on for long as a plain stream: others may
        try something again, with what it may have lost left out of what may be lost."""
        for key in keys:
            if _without(self.under_way, key, plan):
                self.tried.setdefault(key, []).append(plan)


def _without(kept: dict[tuple[str, str], list[Plan]], key: tuple[str, str], plan: Plan) -> bool:
    """Take a plan out of those of a class; whether it was there."""
    plans = kept.get(key, [])
    left = [each for each in plans if each is not plan]
    if left:
        kept[key] = left
    else:
        kept.pop(key, None)
    return len(left) < len(plans)


class Planning:
    """Shared by all requests of a client."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        measurements: Measurements,
        accounts: Accounts | None = None,
        leave: Leave | None = None,
    ) -> None:
        self._policies: dict[object, Chosen] = {}
        self._pool = pool
        self._measurements = measurements
        self._accounts = accounts or Accounts()
        self._leave = leave or Alone()
        self._rng = random.Random()
        for model in config.models.values():
            self.policy(model.policy)  # A policy that can't be is an error now, not later.

    def target(
        self,
        request: TextRequest,
        targets: Sequence[TargetRef],
        model: ModelConfig,
        traffic: str,
        config: PolicyConfig | None,
    ) -> TargetRef:
        """Of interchangeable targets the one that this request goes to."""
        policy = self.policy(config or model.policy).policy
        if not isinstance(policy, Choosing):
            return targets[0]
        prompt = request.about_tokens
        forecasts = []
        for target in map(str, targets):
            found = self._measurements.snapshot(
                target, "", traffic, str(Method.PLAIN), prompt_tokens=prompt
            )
            figures = priced(found, self._pool.price_of(target))
            tokens = Ask(max_tokens=request.max_tokens).answer_tokens(figures)
            forecasts.append(plain_call(figures, prompt, tokens))
        return targets[checked_target(policy, forecasts, self._rng)]

    def options(
        self,
        request: TextRequest,
        target: Target,
        model: ModelConfig,
        policy: Policy,
        floor: Exactness,
        resting: bool,
    ) -> Candidates:
        trust = trust_in(target)
        if resting:
            trust = replace(trust, scoring="refused")
        lossy = policy.lossy if floor is Exactness.HEURISTIC else None
        loose = getattr(policy, "loose", False)  # A policy of one's own needn't know of it.
        found = candidates(request, target.capabilities, model.drafts, trust, lossy, loose)
        return found.at_least(floor)

    def plan(
        self,
        handle: ReportHandle,
        request: TextRequest,
        target: Target,
        model: ModelConfig,
        chosen: Chosen,
        options: Candidates,
        traffic: str,
        left_s: float,
    ) -> Reckoning:
        """The plan, with what it will be reckoned up by."""
        price = self._pool.price_of(str(target.ref))
        context = request.about_tokens
        known: dict[Candidate, Snapshot] = {}

        def figures(candidate: Candidate) -> Snapshot:
            found = known.get(candidate)
            if found is None:
                found = known[candidate] = measured(candidate)
            return found

        def room_of(candidate: Candidate) -> Room:
            doing = candidate.target, candidate.method, candidate.drafter
            return self._measurements.room(str(target.ref), doing, perf_counter())

        def measured(candidate: Candidate) -> Snapshot:
            how = measured_as(candidate.method, options.judge_of(candidate.method))
            found = self._measurements.snapshot(
                str(target.ref), candidate.drafter or "", traffic, how, prompt_tokens=context
            )
            each = candidate.method is Method.SCORE and options.judge is Judge.DRAWS
            found = replace(found, context=context, prompt_per_token=each, room=room_of(candidate))
            return self._pool.draft_priced(priced(found, price), candidate.drafter)

        key = (str(target.ref), traffic)
        account = chosen.account(key)
        withheld = self._leave.withheld((chosen.name, *key))
        if withheld:
            account = replace(account.under_way(True, True, True), trying=withheld)
        every = (str(target.ref), EVERY)
        purse = current.get()
        dollars = None if purse is None else purse.left
        ask = Ask(
            context,
            request.max_tokens,
            seconds=None if left_s == inf else left_s,
            dollars=dollars,
            temperature=self._drawn_at(request, model, options),
            account=account,
            together=chosen.together(str(target.ref)),
            room=room_of,
        )
        plan = self._decided(chosen, key, ask, options, figures)
        used = next((c for c in options.plans if plan.key == (c.target, c.method, c.drafter)), None)
        hoped = used is not None and untried(used, figures(used))
        if plan.trial or plan.yardstick or plan.strays or hoped:
            kept = [key]
            if used is not None and fresh(used, figures(used)) and traffic != EVERY:
                kept.append(every)
            for each in kept:
                handle.on_finish(chosen.begin(each, plan))
            handle.on_finish(self._leave.exploring((chosen.name, *key)))
        how = measured_as(Method.SCORE, options.judge)
        for name in model.drafts:
            tried = plan.method is not Method.PLAIN and plan.drafter == name
            if tried or not self._measurements.tried_now(str(target.ref), name):
                self._measurements.planned(str(target.ref), name, traffic, tried=tried, how=how)
        if plan.plain is not None and plan.predicted is not None:
            handle.update(
                predicted_s=plan.predicted.seconds,
                predicted_usd=plan.predicted.dollars,
                plain_s=plan.plain.seconds,
                plain_usd=plan.plain.dollars,
            )
        crowd = self._measurements.targets[str(target.ref)].crowd
        mark = crowd.mark(perf_counter())
        reckoning = Reckoning(plan, lambda: figures(PLAIN), context)
        reckoning.beside = lambda: crowd.others_since(mark, perf_counter())
        if plan.method is not Method.PLAIN:
            reckoning.member = self._measurements.joins(
                str(target.ref),
                plan.key,
                perf_counter,
                lambda tokens, first: reckoning.due(tokens, first, crowd),
                ask.answer_tokens(figures(PLAIN)),
                lambda: reckoning.beyond_s(),
            )
            if plan.trial:
                reckoning.member.then = lambda: chosen.has_tried(plan, key, every)
            handle.on_finish(reckoning.member.end)
        handle.amend = reckoning.instead
        if isinstance(chosen.policy, Accounting):
            handle.on_finish(lambda report: self._settle(report, chosen, reckoning, key))
        return reckoning

    def _drawn_at(
        self, request: TextRequest, model: ModelConfig, options: Candidates
    ) -> float | None:
        """The temperature that drafts are drawn at, where the config doesn't set one."""
        if options.judge is not Judge.RULES or request.greedy:
            return None
        if any(self._pool.draft_config(name).temperature is not None for name in model.drafts):
            return None
        return request.temperature or 1.0

    def _decided(
        self,
        chosen: Chosen,
        key: tuple[str, str],
        ask: Ask,
        options: Candidates,
        figures: Figures,
    ) -> Plan:
        """The policy's plan. In a long turn of the loop a built-in policy isn't asked again what
        it has just said of a request like this one."""
        policy, turns = chosen.policy, self._measurements.turns
        if isinstance(policy, Adaptive) and type(policy).plan is Adaptive.plan:
            reason = chosen.moment.reason(key, ask, options, turns, perf_counter())
            plan = None if reason is None else policy.plain(ask, figures, alike(reason))
            if plan is not None:
                return plan
        plan = checked_plan(policy, ask, options, figures, self._rng)
        chosen.moment.decided(key, ask, options, turns, plan)
        return plan

    def _settle(
        self, report: Report, chosen: Chosen, reckoning: Reckoning, key: tuple[str, str]
    ) -> None:
        """Enter what a request took into its policy's account, however it ended."""
        found = reckoning.settled(report)
        if found is None or not isinstance(chosen.policy, Accounting):
            return
        account = chosen.accounts.get(key, Account())
        try:
            after = chosen.policy.settle(account, reckoning.plan, *found)
        except Exception:  # A policy of one's own: the request has been answered.
            log.exception("policy %s: settle() failed", type(chosen.policy).__name__)
            return
        chosen.accounts[key], (spent, plain) = after, found
        lost = _lost(chosen, reckoning.plan, spent, plain)
        change = Change.between(account, after, _j(chosen, plain), plain.dollars, lost)
        self._accounts.settled(chosen.name, key, change)
        every = (key[0], EVERY)
        if key != every:
            # Popped, so that it stays the newest: all classes need it.
            chosen.accounts[every] = change.of(chosen.accounts.pop(every, Account()))
            self._accounts.settled(chosen.name, every, change)
        if len(chosen.accounts) > _MOST_ACCOUNTS:
            chosen.accounts.pop(next(iter(chosen.accounts)))

    def policy(self, config: PolicyConfig) -> Chosen:
        key = (config.preset, *sorted(config.params.items()))
        found = self._policies.get(key)
        if found is None:
            name = _name(config)
            found = Chosen(*make_policy(config), name, self._accounts.of(name))
            self._policies[key] = found
            if len(self._policies) > _MOST_POLICIES:
                self._policies.pop(next(iter(self._policies)))
        return found


def _name(config: PolicyConfig) -> str:
    """The same in every process."""
    text = json.dumps([config.preset, sorted(config.params.items())], default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _lost(chosen: Chosen, plan: Plan, spent: Forecast, plain: Forecast) -> float:
    """J that a request took beyond a plain call; how a policy of one's own counts isn't known."""
    if not isinstance(getattr(chosen.policy, "objective", None), Objective):
        return inf
    if plan.method is Method.PLAIN and plan.target is None:
        return 0.0
    return max(_j(chosen, spent) - _j(chosen, plain), 0.0)


def _j(chosen: Chosen, took: Forecast) -> float:
    """What a call costs as the policy counts."""
    objective = getattr(chosen.policy, "objective", None)
    return objective.j(took) if isinstance(objective, Objective) else took.seconds


def trust_in(target: Target) -> Trust:
    """What of a target's evidence may be used, as a frozen value."""
    learned = target.learned
    dialect, sampler = learned.dialect, learned.sampler
    return Trust(
        scoring=learned.scoring,
        reason=learned.reason,
        evidence=dialect[1] if dialect else None,
        argmax=dialect[0].shows.argmax if dialect else False,
        top_n=dialect[0].shows.top_n if dialect else False,
        draws=sampler[1] if sampler else None,
        draw_logprobs=learned.draw_logprobs,
        no_draws=learned.no_draws,
        by_ids=target.by_ids,
        prediction_refused=learned.prediction_refused,
    )

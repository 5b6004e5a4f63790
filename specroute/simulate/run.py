"""One policy through one world, in virtual time.

Plans, drafts, scores, commits, measures and hands over as ``engine`` does, on the world's delays
and hits. Knows no policy by name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, AcceptanceCounts, Mean, Snapshot
from specroute.policy.account import Account
from specroute.policy.base import Accounting, Ask, Forecast, Plan, Policy, RoundView
from specroute.policy.forecast import plain_call
from specroute.simulate.feed import Feed
from specroute.simulate.scenario import Drafter
from specroute.simulate.world import World
from specroute.types import Exactness, Method


@dataclass(frozen=True, slots=True)
class Outcome:
    """What each request took."""

    seconds: tuple[float, ...]
    dollars: tuple[float, ...]
    rounds: int = 0
    methods: tuple[str, ...] = ()


@runtime_checkable
class Confident(Protocol):
    """A policy that stops a draft after a token that its drafter is unsure of."""

    threshold: float


@runtime_checkable
class Learning(Protocol):
    """A policy that learns from what a request took, by itself."""

    def learn(self, plan: Plan, tokens: int, seconds: float) -> None: ...


def options(world: World) -> Candidates:
    """The plans that are possible in a world."""
    plans = [PLAIN]
    for n, target in enumerate(world.targets):
        name = target if n else None
        if name is not None:
            plans.append(Candidate(Method.PLAIN, None, Exactness.EXACT, name))
        plans += [Candidate(Method.SCORE, d.name, Exactness.EXACT, name) for d in world.drafters]
    return Candidates(tuple(plans))


def run(
    world: World, policy: Policy, *, measured: bool = True, feed: Feed | None = None
) -> Outcome:
    """Every request of the world, in order. ``measured=False``: for policies that look at no
    figures. ``feed``: to go on from what was measured before."""
    rng = random.Random(f"policy {world.seed}")
    if measured and feed is None:
        feed = Feed(world)
    able = options(world)
    account = Account()
    seconds, dollars, methods, rounds = [], [], [], 0
    for i in range(world.requests):
        found: dict[Candidate, Snapshot] = {}

        def figures(
            candidate: Candidate, i: int = i, found: dict[Candidate, Snapshot] = found
        ) -> Snapshot:
            if candidate not in found:
                found[candidate] = Snapshot() if feed is None else feed.figures(i, candidate)
            return found[candidate]

        ask = Ask(world.context(i), account=account)
        plan = policy.plan(ask, able, figures, rng)
        chosen = Candidate(plan.method, plan.drafter, Exactness.EXACT, plan.target)
        if feed is not None:
            feed.planned(chosen)
        taken = _Request(world, i, plan, policy, feed, figures(chosen)).run()
        seconds.append(taken.seconds)
        dollars.append(taken.dollars)
        methods.append(str(plan.method))
        rounds += taken.n
        if feed is not None and isinstance(policy, Accounting):
            plain = plain_call(feed.figures(i, PLAIN), world.context(i), world.tokens(i))
            if plain is not None:
                dollars_known = world.prices(taken.target) is not None
                spent = Forecast(taken.seconds, taken.dollars if dollars_known else None)
                account = policy.settle(account, plan, spent, plain)
        if isinstance(policy, Learning):
            policy.learn(plan, world.tokens(i), taken.seconds)
    return Outcome(tuple(seconds), tuple(dollars), rounds, tuple(methods))


def plain_outcome(world: World, target: str) -> Outcome:
    """Every request plain."""
    usd_in, usd_out, _ = world.prices(target) or (0.0, 0.0, None)
    seconds, dollars = [], []
    for i in range(world.requests):
        n = world.tokens(i)
        seconds.append(world.ttft(i, 0, target) + (n - 1) * world.tpot(i, target))
        dollars.append(world.context(i) * usd_in + n * usd_out)
    return Outcome(tuple(seconds), tuple(dollars))


class _Request:
    """One request while it runs."""

    def __init__(
        self,
        world: World,
        i: int,
        plan: Plan,
        policy: Policy,
        feed: Feed | None,
        snapshot: Snapshot,
    ) -> None:
        self.world, self.i, self.plan, self.policy, self.feed = world, i, plan, policy, feed
        self.snapshot = snapshot
        self.target = plan.target or world.targets[0]
        self.seconds = self.dollars = 0.0
        self.n = self.at = 0
        self.prompts = self.cached = 0
        """Of the scoring requests."""
        self.usd_in, self.usd_out, self.usd_cached = world.prices(self.target) or (0.0, 0.0, None)

    def run(self) -> _Request:
        plain_from = 0
        if self.plan.method is Method.SCORE and self.plan.drafter is not None:
            self._score(self._drafter(self.plan.drafter))
            plain_from = self.at
        tokens, world, i = self.world.tokens(self.i), self.world, self.i
        left = tokens - plain_from
        ttft = None
        tpot = world.tpot(i, self.target)
        if left > 0:
            ttft = world.ttft(i, self.n, self.target)
            self.seconds += ttft + (left - 1) * tpot
            self._bill(0, left, scoring=False)
        if self.feed is not None:
            self.feed.at += self.seconds
            if self.n and self.plan.drafter is not None:
                self.feed.over(self.target, self.plan.drafter, i)
            self.feed.answered(
                i,
                self.target,
                ttft_s=ttft,
                tpot_s=tpot,
                streamed=left,
                context=world.context(i) + plain_from,
                rounds=(self.prompts, self.cached),
                drafter=self.plan.drafter if self.n else None,
            )
        return self

    def _drafter(self, name: str) -> Drafter:
        return next(each for each in self.world.drafters if each.name == name)

    def _score(self, drafter: Drafter) -> None:
        world, i, tokens = self.world, self.i, self.world.tokens(self.i)
        runs: Sequence[int] = world.runs(i, drafter, self.target)
        sure: Sequence[float] = ()
        threshold = 0.0
        if isinstance(self.policy, Confident):
            sure, threshold = world.confidences(i, drafter, self.target), self.policy.threshold
        context = world.context(i)
        own, verify, draft = AcceptanceCounts(), Mean(0.8, most=2), Mean(0.8, most=2)
        measured = self.feed is not None
        last: tuple[int, int] | None = None
        nothing = Acceptance()
        while self.at < tokens:
            view = RoundView(
                self.n,
                self.at,
                None,
                own.frozen() if measured else nothing,
                verify.value,
                draft.value,
                self.plan,
                context + self.at,
                last,
            )
            k = self.policy.next_k(view, self.snapshot)
            if k == 0:
                return
            if sure:
                k = _until_unsure(sure, self.at, k, threshold)
            k = min(k, tokens - self.at - 1)
            accepted = min(runs[self.at], k)
            drafting = k * drafter.token_s
            verifying = world.round_s(i, self.n, k, self.target)
            self.seconds += drafting + verifying
            if self.n == 0:
                self.seconds += context * drafter.read_s
            self._bill(k, 1, scoring=True)
            if measured and self.feed is not None:
                own.add(accepted, accepted + (accepted < k))
                verify.add(verifying)
                if self.n and k:
                    draft.add(drafting / k, k)
                self.feed.round(
                    self.target,
                    drafter.name,
                    k,
                    accepted,
                    drafting if self.n else None,
                    verifying,
                    context + self.at,
                    i,
                )
            last = (k, accepted)
            self.at += accepted + 1
            self.n += 1

    def _bill(self, drafted: int, output: int, *, scoring: bool) -> None:
        prompt = self.world.context(self.i) + self.at
        cached = max(prompt - 1, 0) if self.n and self.usd_cached is not None else 0
        if scoring:
            self.prompts += prompt
            self.cached += cached
        self.dollars += (prompt - cached + drafted) * self.usd_in + output * self.usd_out
        if cached and self.usd_cached is not None:
            self.dollars += cached * self.usd_cached


def _until_unsure(sure: Sequence[float], at: int, k: int, threshold: float) -> int:
    """Tokens up to and with the first one below the threshold."""
    for j in range(k):
        if at + j >= len(sure) or sure[at + j] < threshold:
            return j + 1
    return k

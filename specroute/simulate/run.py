"""One policy through one world, in virtual time.

Plans, drafts, scores, commits, measures and hands over as ``engine`` does, on the world's delays
and hits. Knows no policy by name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Snapshot
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Accounting, Ask, Forecast, Plan, Policy
from specroute.policy.forecast import plain_call
from specroute.sharing.accounts import Change
from specroute.simulate.feed import Feed
from specroute.simulate.request import Request
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
    accounts: dict[str, Account] = {}
    seconds, dollars, methods, rounds = [], [], [], 0
    for i in range(world.requests):
        found: dict[Candidate, Snapshot] = {}

        def figures(
            candidate: Candidate, i: int = i, found: dict[Candidate, Snapshot] = found
        ) -> Snapshot:
            if candidate not in found:
                found[candidate] = Snapshot() if feed is None else feed.figures(i, candidate)
            return found[candidate]

        traffic = world.traffic(i)
        account = accounts.get(traffic, Account())
        together = accounts.get("", Account())
        ask = Ask(
            world.context(i), temperature=world.temperature, account=account, together=together
        )
        plan = policy.plan(ask, able, figures, rng)
        chosen = Candidate(plan.method, plan.drafter, Exactness.EXACT, plan.target)
        if feed is not None:
            feed.planned(i, chosen)
        taken = Request(world, i, plan, policy, feed, figures(chosen)).run()
        seconds.append(taken.seconds)
        dollars.append(taken.dollars)
        methods.append(str(plan.method))
        rounds += taken.sent
        if feed is not None and isinstance(policy, Accounting):
            plain = plain_call(feed.figures(i, PLAIN), world.context(i), world.tokens(i))
            if plain is not None:
                dollars_known = world.prices(taken.target) is not None
                spent = Forecast(taken.seconds, taken.dollars if dollars_known else None)
                after = accounts[traffic] = policy.settle(account, plan, spent, plain)
                if traffic:
                    j = policy.objective.j if isinstance(policy, Adaptive) else _seconds
                    lost = max(j(spent) - j(plain), 0.0) if chosen != PLAIN else 0.0
                    change = Change.between(account, after, j(plain), plain.dollars, lost)
                    accounts[""] = change.of(together)
        if isinstance(policy, Learning):
            policy.learn(plan, world.tokens(i), taken.seconds)
    return Outcome(tuple(seconds), tuple(dollars), rounds, tuple(methods))


def _seconds(took: Forecast) -> float:
    return took.seconds


def plain_outcome(world: World, target: str) -> Outcome:
    """Every request plain."""
    usd_in, usd_out, _ = world.prices(target) or (0.0, 0.0, None)
    seconds, dollars = [], []
    for i in range(world.requests):
        n = world.tokens(i)
        seconds.append(world.ttft(i, 0, target) + (n - 1) * world.tpot(i, target))
        dollars.append(world.context(i) * usd_in + n * usd_out)
    return Outcome(tuple(seconds), tuple(dollars))

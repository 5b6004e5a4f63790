"""How long planning itself takes: a request's plan, and a round's K."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import process_time

from specroute.candidates import Candidate
from specroute.measure import AcceptanceCounts, Snapshot
from specroute.policy.account import Account
from specroute.policy.base import Ask, Policy, RoundView
from specroute.simulate.feed import Feed
from specroute.simulate.judge import Verdict
from specroute.simulate.run import options, run
from specroute.simulate.scenario import Scenario
from specroute.simulate.world import Synthetic

REQUEST_S = 200e-6
ROUND_S = 50e-6
_REPEATS, _CALLS = 15, 100


def per_request_and_round(policy: Policy) -> list[Verdict]:
    """Seconds of ``plan`` (two drafters, two methods' figures at hand) and of ``next_k``."""
    world = Synthetic(Scenario(alpha=0.9, r=0.01, requests=30))
    feed = Feed(world)
    run(world, policy, feed=feed)
    able, rng = options(world), random.Random(1)
    known = {candidate: feed.figures(0, candidate) for candidate in able.plans}
    own = AcceptanceCounts()
    for _ in range(10):
        own.add(5, 6)
    plan = policy.plan(Ask(500), able, known.__getitem__, rng)
    figures = _of(known, plan.drafter)
    view = RoundView(10, 60, None, own.frozen(), 0.05, 0.004, plan, 560, (8, 5))
    rich = Ask(500, account=Account(allowance=1e3, spent=1e6, yardstick=1e6))  # All is drawn.
    planning = _best(lambda: policy.plan(rich, able, known.__getitem__, rng))
    next_k = _best(lambda: policy.next_k(view, figures))
    return [
        Verdict(
            planning < REQUEST_S, "planning costs under 200 µs a request", f"{planning * 1e6:.0f}"
        ),
        Verdict(next_k < ROUND_S, "and under 50 µs a round", f"{next_k * 1e6:.0f}"),
    ]


def _of(known: dict[Candidate, Snapshot], drafter: str | None) -> Snapshot:
    return next(figures for c, figures in known.items() if drafter in (c.drafter, None))


def _best(call: Callable[[], object]) -> float:
    """The processor's seconds a call, the least of several runs."""
    found = float("inf")
    for _ in range(_REPEATS):
        started = process_time()
        for _ in range(_CALLS):
            call()
        found = min(found, (process_time() - started) / _CALLS)
    return found

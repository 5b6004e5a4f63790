"""What a request has lost already counts, whatever the figures promise for the rest of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance
from specroute.measure.crowd import Crowd
from specroute.measure.estimate import Estimate
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, Forecast, Plan, RoundView
from specroute.policy.forecasts import FORECASTS
from specroute.policy.objective import Objective
from specroute.types import Exactness, Method
from tests.policy.test_choice import figures, rate

PLAIN_S = 4.0
"""A plain call of ``figures``: 0.05 s to the first of 100 tokens, 0.04 s to each further one."""


def score(predicted: float = 1.4, **more: object) -> Plan:
    plan = Plan(Method.SCORE, "d", 8, "", predicted=Forecast(predicted), plain=Forecast(PLAIN_S))
    return replace(plan, **more)  # type: ignore[arg-type]


def seen(plan: Plan, seconds: float, committed: int = 20, rounds: int = 4) -> RoundView:
    """A request of which plain would have brought 20 tokens after 0.85 s."""
    return RoundView(rounds, committed, None, Acceptance(), None, None, plan, 120, None, seconds)


@pytest.mark.parametrize(
    ("view", "goes_on"),
    [
        (seen(score(), 0.6), True),
        (seen(score(), 2.1), True),  # Late, but by less than half of what it is to save.
        (seen(score(), 2.2), False),
        (seen(score(), 1.7, rounds=8), False),  # After so many rounds it is no bad luck.
        (seen(score(), 1.6, rounds=8), True),
        (seen(score(3.8), 1.8), True),
        (seen(score(3.8), 1.9), False),  # Little was promised.
        (seen(score(), 2.2, rounds=1), True),  # One round may stall.
        (seen(score(6.0), 2.2), True),  # Slower, as it was said to be: for its dollars.
        (seen(score(6.0), 2.4), False),
        (seen(score(depth=2), 2.17), False),
        (seen(score(), 0.0), True),  # A clock that isn't known says nothing.
        (seen(score(3.8, method=Method.PREFIX), 1.8), True),
        (seen(score(3.8, method=Method.PREFIX), 1.9), False),
        (seen(score(3.8, method=Method.PREFIX), 1.9, committed=4), True),
    ],
)
def test_a_request_that_is_late_is_left_to_a_plain_stream(view: RoundView, goes_on: bool) -> None:
    """Though by the figures its rounds are three times as fast as plain."""
    assert (Adaptive().next_k(view, figures()) > 0) == goes_on


def test_a_crowd_has_slowed_plain_streams_down_as_well() -> None:
    """What plain would have taken is by its pace then and now: as late as this a request was left
    to a stream when nobody else was there; now streams take .2 s a token."""
    view = seen(score(3.8), 1.9)
    assert Adaptive().next_k(view, figures()) == 0
    crowd = Crowd("t", others=20, tpot_s=0.2)
    assert Adaptive().next_k(view, replace(figures(), crowd=crowd)) > 0


def test_the_last_tokens_are_no_dearer_in_a_round_than_in_a_stream() -> None:
    """Six tokens are left and max_cost_ratio is 1: by itself such a round costs more a token than
    plain does, but a stream that takes over reads the context once more. With 60 left it doesn't
    matter, and the rest goes plain."""
    priced = figures(usd_in=3e-6, usd_out=15e-6, usd_cached=0.3e-6, context=190)
    known = replace(priced, round_cached=Estimate.exactly(0.9), acceptance=rate(0.9))
    policy = Adaptive(Objective(1.0, max_cost_ratio=1.0))
    plan = score(usd_per_second=1e-5)
    late = RoundView(9, 94, 6, Acceptance(), None, None, plan, 254)
    assert policy.next_k(late, known) > 0
    early = replace(late, committed=40, remaining=60, context=200)
    assert policy.next_k(early, known) == 0


def test_rounds_in_flight_are_not_late_yet() -> None:
    """What they take until they are back is no loss."""
    view = replace(seen(score(depth=2), 2.17), verify_s=0.05)
    assert Adaptive().next_k(view, figures()) > 0


def test_a_trial_is_predicted_as_expected() -> None:
    """Not as it was drawn, which is hopeful: a trial that wins in a draw only."""
    options = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.EXACT)))
    known = figures(0.32, acceptance=rate(0.32, weight=4.0))
    rng, ask = random.Random(3), Ask(100, account=Account(spent=400.0, allowance=6.0))
    plans = [Adaptive().plan(ask, options, lambda _: known, rng) for _ in range(60)]
    trials = [plan for plan in plans if plan.trial]
    expected = FORECASTS[Method.SCORE](known, ask, Objective())
    assert expected is not None
    assert trials
    for plan in trials:
        assert plan.predicted is not None
        assert plan.plain is not None
        # As it loses, by what is known, it is left after a few rounds.
        assert plan.plain.seconds < plan.predicted.seconds < expected.forecast.seconds


def test_hope_alone_is_said_to_be_hope() -> None:
    """A plan that would win if its draft were good is plain while nothing may be lost."""
    options = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.EXACT)))
    unknown = figures(acceptance=Acceptance())
    plan = Adaptive().plan(Ask(100), options, lambda _: unknown, random.Random(1))
    assert plan.method is Method.PLAIN
    assert "nothing of it was judged yet" in plan.reason

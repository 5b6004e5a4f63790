"""What ``judge`` and ``race`` are expected to take, and what a remote draft's price does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.config import parse_policy
from specroute.measure import Acceptance, Pace, Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecast_cascade import cascade
from specroute.policy.forecast_opinion import judge, race
from specroute.policy.forecasts import FORECASTS
from specroute.policy.make import make_policy
from specroute.policy.objective import Objective
from specroute.types import Exactness, Method

ASK = Ask(400, 200)


def figures(good: float | None, **more: Any) -> Snapshot:
    """A target at TTFT .5 s and TPOT 40 ms; of its drafts, ``good`` survive every position."""
    acceptance = Acceptance()
    if good is not None:
        judged = (1e6,) + (1e6 * good,) * 200
        acceptance = Acceptance((1e6 * good,) * 201, judged)
    price = {"usd_in": 2e-6, "usd_out": 1e-5, "draft_s": 0.005}
    return Snapshot(Pace(0.5, 0.04, 200.0), acceptance, **{**price, **more})


@pytest.mark.parametrize("good", [0.0, 0.8, 1.0])
def test_a_good_draft_saves_and_a_bad_one_costs(good: float) -> None:
    """In seconds and in dollars, against plain."""
    plain = FORECASTS[Method.PLAIN](figures(good), ASK, Objective())
    assert plain is not None and plain.forecast.dollars is not None
    for forecaster in (judge, race):
        offer = forecaster(figures(good), ASK, Objective())
        assert offer is not None and offer.forecast.dollars is not None
        assert (offer.forecast.seconds < plain.forecast.seconds) == (good > 0)
        assert (offer.forecast.dollars < plain.forecast.dollars) == (good > 0)
        assert offer.k == 200


@pytest.mark.parametrize("forecaster", [cascade, judge, race])
def test_a_remote_drafts_price_counts(forecaster: Any) -> None:
    """A dear one costs more than it can save; an unknown price leaves the dollars unknown."""
    free = forecaster(figures(0.9), ASK, Objective())
    dear = forecaster(figures(0.9, usd_draft_in=1e-6, usd_draft_out=4e-6), ASK, Objective())
    assert dear.forecast.dollars == pytest.approx(free.forecast.dollars + 400e-6 + 800e-6)
    assert dear.forecast.seconds == free.forecast.seconds
    unknown = forecaster(figures(0.9, usd_draft_in=None, usd_draft_out=None), ASK, Objective())
    assert unknown.forecast.dollars is None


@pytest.mark.parametrize("method", [Method.CASCADE, Method.JUDGE, Method.RACE])
def test_nothing_is_said_before_the_plain_pace_is_known(method: Method) -> None:
    """The planner measures that first."""
    assert FORECASTS[method](Snapshot(), ASK, Objective()) is None


def test_untried_it_is_hoped_for() -> None:
    """Or it would never be tried."""
    untried, sure = race(figures(None), ASK, Objective()), race(figures(0.2), ASK, Objective())
    assert untried is not None and sure is not None
    assert untried.forecast.seconds < sure.forecast.seconds


@pytest.mark.parametrize(("good", "chosen"), [(0.95, Method.RACE), (0.02, Method.PLAIN)])
def test_the_planner_chooses_among_them(good: float, chosen: Method) -> None:
    """The preset ``latency`` with heuristic answers allowed."""
    policy, _ = make_policy(
        parse_policy({"preset": "latency", "exactness": "heuristic", "exploration": 0})
    )
    options = Candidates((PLAIN, Candidate(Method.RACE, "d", Exactness.HEURISTIC)))
    seen = figures(good, rounds=300.0)
    plans = {policy.plan(ASK, options, lambda _: seen, random.Random(i)).method for i in range(20)}
    assert plans == {chosen}

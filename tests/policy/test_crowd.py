"""K and speculation among other requests: the closed form against trying everything out."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest

from specroute.config import parse_policy
from specroute.measure import Acceptance, Estimate, Snapshot
from specroute.measure.crowd import Crowd
from specroute.measure.estimate import Law
from specroute.measure.figures import Pace
from specroute.measure.together import Room
from specroute.policy.account import Account
from specroute.policy.base import Ask, RoundView
from specroute.policy.crowd import FREE, gain_of_all, joins, rates, toll
from specroute.policy.forecast import best_round
from specroute.policy.forecasts import FORECASTS
from specroute.policy.make import make_policy
from specroute.policy.objective import Objective
from specroute.simulate.crowd import ABLE, Drafts, Rush, Server, rushed
from specroute.types import Method

pytestmark = pytest.mark.alone

SECONDS = Objective()


def exactly(value: float) -> Estimate:
    return Estimate.exactly(value)


def figures(crowd: Crowd, alpha: float = 0.8, *, base: float = 0.06) -> Snapshot:
    """Rounds of ``base`` seconds and 1 ms a token; drafting is 1 ms a token."""
    return Snapshot(
        acceptance=Acceptance((alpha * 1e6,) * 64, (1e6,) * 64),
        round_law=Law(base, 0.0, 0.001),
        draft_s=0.001,
        crowd=crowd,
    )


def crowd(others: int, speculating: int, per_token: float, **more: float) -> Crowd:
    return Crowd(
        others=others,
        speculating=speculating,
        scoring=1.0,
        rate=40.0,
        tpot_s=0.04,
        round_s=0.06,
        per_token=exactly(per_token),
        per_sequence=exactly(more.get("per_sequence", 0.0)),
        rereads=0.0,
    )


@pytest.mark.parametrize("others", [0, 1, 4, 16, 64])
@pytest.mark.parametrize("per_token", [0.0, 5e-5, 5e-4])
@pytest.mark.parametrize("alpha", [0.5, 0.8, 0.95])
def test_the_marginal_rule_finds_the_k_that_brings_the_crowd_most(
    others: int, per_token: float, alpha: float
) -> None:
    """g(K) = (E(K) - ε(K)·Ω) / T(K), tried for every K."""
    seen = figures(crowd(others, others // 2, per_token), alpha)
    found = best_round(seen, 300, SECONDS)
    lost = toll(seen, None, 0.06, 300)

    def g(k: int) -> float:
        return (sum(alpha**j for j in range(k + 1)) - lost.round(k)) / (0.06 + 0.002 * k)

    best = max(range(1, 65), key=g)
    assert g(found.k) == pytest.approx(g(best), rel=1e-3)


def test_in_lockstep_it_is_the_scheduler_that_admits_by_survival() -> None:
    """DSpark's Θ = τ·SPS(B) over all sets of tokens of three requests, against one threshold."""
    alphas, fixed, each = (0.5, 0.8, 0.9), 0.05, 0.01

    def theta(ks: tuple[int, ...]) -> float:
        committed = sum(sum(a**j for j in range(k + 1)) for a, k in zip(alphas, ks, strict=True))
        return committed / (fixed + each * sum(1 + k for k in ks))

    best = max(itertools.product(range(13), repeat=3), key=theta)
    threshold = theta(best) * each
    assert best == tuple(sum(a**k > threshold for k in range(1, 13)) for a in alphas)


def test_with_nobody_else_there_nothing_is_lost() -> None:
    """The rule of a single request."""
    seen = figures(Crowd())
    assert toll(seen, 0.02, 0.06, 300) == FREE
    assert gain_of_all(100, 4.0, 0.0, 2.0, 0.0) == 2.0


def test_the_more_are_in_flight_the_smaller_k() -> None:
    """Each token read costs everybody 0.1 ms."""
    ks = [best_round(figures(crowd(n, n, 1e-4)), 300, SECONDS).k for n in (0, 2, 8, 32, 128)]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > ks[-1]


def test_all_are_better_off_exactly_where_a_request_brings_the_crowd_more_a_second() -> None:
    """gain > 1 iff g > g0."""
    rng = random.Random(5)
    for _ in range(500):
        tokens, plain_j = 100, rng.uniform(1, 10)
        plain_lost = rng.uniform(0, 99)
        j, lost = rng.uniform(0.5, 20), rng.uniform(0, 300)
        g, g0 = (tokens - lost) / j, (tokens - plain_lost) / plain_j
        assert (gain_of_all(tokens, plain_j, plain_lost, j, lost) > 1) == (g > g0)


def test_streams_and_those_that_wait_for_scores_are_both_held_up() -> None:
    """Ω, tokens a second."""
    assert rates(crowd(5, 2, 0.0), 0.04) == (3 / 0.04, 2 * 40.0)
    assert rates(replace(crowd(5, 2, 0.0), scoring=0.5), 0.04) == (3 / 0.04, 40.0)


def test_a_saturated_server_is_spared_sequences_but_not_reading() -> None:
    """A token of a stream costs the others a sequence's share of the step, a drafted one only what
    reading it takes."""
    taken = toll(figures(crowd(63, 0, 5e-5, per_sequence=0.0006)), None, 0.06, 300)
    assert taken.per_token == pytest.approx(63 / 0.04 * 0.0006)
    assert taken.per_draft == pytest.approx(63 / 0.04 * 5e-5)


@pytest.mark.parametrize("method", [m for m in FORECASTS if m is not Method.SCORE])
def test_every_method_is_charged_with_what_it_takes_from_the_others(method: Method) -> None:
    """Lanes, verdicts and answers that go on in plain are streams as well; nobody there: nothing."""
    seen = replace(
        figures(crowd(30, 0, 5e-5, per_sequence=0.0006), 0.9),
        pace=Pace(ttft_s=0.2, tpot_s=0.04, answer_tokens=80.0),
        usd_in=0.0,
        usd_out=0.0,
        usd_draft_in=0.0,
        usd_draft_out=0.0,
        predicted=exactly(0.9),
        predicted_tpot=exactly(0.02),
    )
    ask = Ask(context=100, max_tokens=80)
    found = FORECASTS[method](seen, ask, SECONDS)
    plain = FORECASTS[Method.PLAIN](seen, ask, SECONDS)
    assert found is not None and plain is not None
    alone = FORECASTS[method](replace(seen, crowd=Crowd()), ask, SECONDS)
    assert alone is not None and alone.lost == 0
    assert found.lost > 0.05 * plain.lost > 0
    if method is Method.PREFIX:
        assert found.lanes and found.lost > plain.lost


LATENCY = make_policy(parse_policy("latency"))[0]
PLAIN = make_policy(parse_policy({"preset": "fixed", "method": "plain"}))[0]


@pytest.mark.parametrize(
    ("server", "least"),
    [(Server("cheap"), 1.5), (Server("dear", prefill=2000, rereads=True), 0.97)],
)
def test_twice_what_plain_can_serve_is_answered_at_least_as_fast(
    server: Server, least: float
) -> None:
    """Where scoring costs the server less than decoding it is used, where it costs more it isn't."""
    rush = Rush(server, Drafts("free"), 2.0, requests=150, warm=40)
    plain, found = rushed(rush, PLAIN), rushed(rush, LATENCY)
    assert found.throughput > least * plain.throughput
    assert found.quantile(0.99) < 1.1 * plain.quantile(0.99)


def test_a_rush_in_which_speculation_pays_speculates_from_its_first_seconds() -> None:
    """From two or three in flight to dozens: nine tokens in ten come of rounds."""
    rush = Rush(Server("cheap"), Drafts("free"), 2.0, requests=150, warm=40)
    assert rushed(rush, LATENCY).speculated > 0.9


def test_plans_are_followed_by_twice_as_many_as_have_won_and_near_a_loss_by_a_tenth_more() -> None:
    """The table."""
    inf = float("inf")
    table = [(1, inf, 8), (8, inf, 16), (100, inf, 200), (5, 20, 10), (10, 20, 11), (30, 20, 33)]
    for proven, lost, most in table:
        assert joins(Room(most - 1, proven, lost))
        assert not joins(Room(most, proven, lost))


def test_a_plan_that_enough_others_follow_already_is_left_out() -> None:
    """The reason says how many were seen to win; a trial is no exception."""
    seen = replace(
        figures(Crowd(others=30)), verify_s=0.06, tpot_law=Law(0.04), ttft_law=Law(0.1), rounds=50.0
    )
    full = replace(seen, room=Room(20, 10.0))
    assert LATENCY.plan(Ask(300), ABLE, lambda _: seen, random.Random(1)).method is Method.SCORE
    plan = LATENCY.plan(Ask(300), ABLE, lambda _: full, random.Random(1))
    assert plan.method is Method.PLAIN
    assert "20 requests do so now, and no more than 10 at a time have been seen" in plan.reason
    rich = Ask(300, account=Account(allowance=100.0))
    slow = replace(full, round_law=Law(0.2, 0.0, 0.001))
    assert LATENCY.plan(rich, ABLE, lambda _: slow, random.Random(1)).method is Method.PLAIN


def test_the_reason_names_the_load_it_was_decided_at() -> None:
    """137 in flight, and each token read costs all of them dearly."""
    many = replace(crowd(136, 0, 5e-4), target="lab:target", rereads=1.0)
    seen = replace(figures(many), verify_s=0.06, tpot_law=Law(0.04), ttft_law=Law(0.1), rounds=50.0)
    plan = LATENCY.plan(Ask(300), ABLE, lambda _: seen, random.Random(1))
    assert plan.method is Method.PLAIN
    assert plan.reason.startswith("137 requests in flight at lab:target: score with 'draft' would")
    alone = LATENCY.plan(Ask(300), ABLE, lambda _: replace(seen, crowd=Crowd()), random.Random(1))
    assert alone.method is Method.SCORE
    assert "in flight" not in alone.reason


def test_k_costs_little_more_to_choose_in_a_crowd() -> None:
    """Under 50 µs a round."""
    seen = figures(crowd(64, 32, 1e-4))
    view = RoundView(10, 60, None, Acceptance((9.0,), (10.0,)), 0.06, 0.001, None, 300, (8, 5))
    best = float("inf")
    for _ in range(15):
        began = time.process_time()
        for _ in range(100):
            LATENCY.next_k(view, seen)
        best = min(best, (time.process_time() - began) / 100)
    assert best < 50e-6

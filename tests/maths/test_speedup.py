"""The physics against the tables it was designed from, and against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.speedup import (
    Best,
    Cost,
    Pace,
    Prices,
    best_k,
    best_score,
    expected_from_survival,
    expected_tokens,
    geometric_survival,
    pipelined_bound,
    plain,
    prefix,
    score,
    score_answer,
    speedup,
)


def pace(r: float) -> Pace:
    return Pace(tpot=0.040, r=r, d=0.004, verify_per_token=0.0001)


@pytest.mark.parametrize(
    ("r", "expected"),
    [
        (0.010, {0.7: 1.67, 0.8: 2.12, 0.9: 3.0, 0.95: 4.0}),
        (0.030, {0.7: 1.30, 0.8: 1.69, 0.9: 2.50, 0.95: 3.47}),
        (0.100, {0.7: 0.74, 0.8: 1.01, 0.9: 1.62, 0.95: 2.43}),
        (0.400, {0.7: 0.27, 0.8: 0.39, 0.9: 0.69, 0.95: 1.16}),
    ],
)
def test_the_best_sequential_speedup(r, expected):
    """TPOT 40 ms, d 4 ms: what scoring rounds reach at each R and α."""
    got = {}
    for alpha in expected:
        survival = geometric_survival(alpha, 100)
        k = best_k(survival, r + 0.040, 0.0041).k
        got[alpha] = speedup(survival, k, pace(r))
    assert got == pytest.approx(expected, abs=0.03)


def test_the_policy_knows_when_scoring_loses():
    """At R = 100 ms α = .7 means K = 0; at R = 10 ms it means K = 4 or so."""
    survival = geometric_survival(0.7, 50)
    assert best_score(survival, pace(0.100)) == Best(0, 0.040)
    assert best_score(survival, pace(0.010)).k in (4, 5)


@pytest.mark.parametrize(
    ("r", "alpha", "expected"),
    [(0.1, 0.7, 0.87), (0.1, 0.8, 1.25), (0.1, 0.9, 2.22), (0.1, 0.95, 3.64), (0.4, 0.95, 1.54)],
)
def test_the_pipelined_bound(r, alpha, expected):
    """Rounds in flight lift the bound."""
    assert pipelined_bound(alpha, pace(r)) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("cached_price", "cache_hit", "expected"),
    [(0.1, 1.0, [0.82, 0.65, 0.54, 0.43]), (1.0, 0.0, [1.14, 1.00, 0.92, 0.43])],
)
def test_one_shot_scoring_against_plain(cached_price, cache_hit, expected):
    """Prompt 1000, output 500, output 5x input: a drafted answer is scored once, the rest is
    generated; cost relative to plain when 50, 75, 90 and 100 % of it is kept."""
    prices = Prices(input=1.0, output=5.0, cached=cached_price)
    fast = Pace(tpot=0.04)
    base = plain(1000, 500, fast).dollars(prices)
    got = []
    for kept in (0.5, 0.75, 0.9, 1.0):
        survival = [1.0] * int(kept * 500)
        whole = score(1000, 500, survival, fast)
        whole += plain(1000 + kept * 500, 500 - kept * 500, fast, cache_hit)
        got.append(whole.dollars(prices) / base)
    assert got == pytest.approx(expected, abs=0.0101)


def test_many_rounds_on_a_hosted_api_cost_far_more():
    """Every scoring round is billed for the whole prompt again."""
    prices = Prices(input=1.0, output=5.0)
    rounds = score_answer(1000, 500, 6, geometric_survival(0.8, 6), Pace(tpot=0.04))
    assert rounds.dollars(prices) / plain(1000, 500, Pace(0.04)).dollars(prices) > 30


def test_expected_tokens_by_hand():
    """E(K) at α = ½: 1 + ½ + ¼."""
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == 1
    assert expected_from_survival([0.9, 0.5], 5) == pytest.approx(2.4)


@given(st.floats(0, 1), st.integers(0, 60))
def test_expected_tokens_is_survival_summed(alpha, k):
    """The closed form equals 1 + Σ α^j, lies in [1, K+1]."""
    e = expected_tokens(alpha, k)
    assert e == pytest.approx(expected_from_survival(geometric_survival(alpha, k), k))
    assert 1 <= e <= k + 1 + 1e-9


survivals = st.lists(st.floats(0, 1), max_size=30).map(lambda s: sorted(s, reverse=True))


@given(survivals, st.floats(0.001, 1), st.floats(0.0001, 0.1), st.floats(0.001, 0.2))
def test_best_k_is_the_best(survival, fixed, marginal, plain_j):
    """The marginal rule's fixed point is no worse than any K, and 0 exactly when plain wins."""
    costs = [
        (fixed + k * marginal) / expected_from_survival(survival, k)
        for k in range(len(survival) + 1)
    ]
    unbounded = best_k(survival, fixed, marginal)
    if unbounded.k:
        assert unbounded.j == pytest.approx(min(costs))
    else:
        assert costs[0] == pytest.approx(min(costs))
    bounded = best_k(survival, fixed, marginal, plain_j)
    assert (bounded.k == 0) == (unbounded.k == 0 or unbounded.j >= plain_j)


@given(survivals, st.floats(0, 1))
def test_dearer_tokens_never_lengthen_the_draft(survival, extra):
    """K falls as the marginal cost rises."""
    ks = [best_k(survival, 0.05, m).k for m in (0.001, 0.001 + extra / 10, 0.2)]
    assert ks == sorted(ks, reverse=True)


def test_money_shortens_drafts():
    """With λ > 0 an input token's price is part of the marginal cost."""
    survival = geometric_survival(0.9, 40)
    free = best_score(survival, pace(0.01))
    paid = best_score(survival, pace(0.01), prices=Prices(input=1e-6, output=5e-6), lam=2000)
    assert 0 < paid.k < free.k


@given(survivals, st.integers(1, 20), st.integers(0, 5), st.floats(0, 1))
def test_prefix_lanes_are_never_slower_than_plain(survival, chunk, lanes, r):
    """A wave keeps at least what the plain stream has written, at most (lanes + 1) chunks."""
    wave = prefix(1000, chunk, lanes, survival, Pace(0.04, r=r))
    assert wave.j_per_token() <= 0.04 + 1e-9
    assert wave.tokens <= max((lanes + 1) * chunk, wave.seconds / 0.04) + 1e-9


def test_prefix_lanes_by_hand():
    """Two lanes, certain draft, R = 0: three chunks in the time of one, every prompt billed."""
    wave = prefix(100, 10, 2, [1.0] * 20, Pace(0.04))
    assert wave == Cost(seconds=0.4, tokens=30, prompt=230, cached=0, completion=30)


def test_costs_add_up():
    """Cost is a sum of calls; plain of nothing is nothing."""
    assert plain(10, 0, Pace(0.04)) == Cost(0, 0)
    total = plain(10, 1, Pace(0.04)) + plain(20, 2, Pace(0.04), cache_hit=0.5)
    assert total == Cost(pytest.approx(0.12), 3, 30, 10, 3)
    assert total.dollars(Prices(1, 10, 0.1)) == pytest.approx(20 + 1 + 30)
    assert total.j(Prices(1, 10, 0.1), lam=2) == pytest.approx(0.12 + 102)

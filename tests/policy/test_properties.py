"""What holds of every plan, whatever was measured."""

from __future__ import annotations

import itertools
import operator
import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, Pace, Snapshot
from specroute.policy.account import EARLY, LENT, Account, Settled
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, Forecast, Plan
from specroute.policy.chance import rates
from specroute.policy.forecast import best_round
from specroute.policy.objective import Objective
from specroute.types import Exactness, Method

OPTIONS = Candidates(
    (PLAIN, *(Candidate(Method.SCORE, name, Exactness.EXACT) for name in ("a", "b")))
)


def figures(
    alpha: float, verify_s: float, draft_s: float, tpot_s: float, usd_out: float, weight: float
) -> Snapshot:
    return Snapshot(
        Pace(verify_s, tpot_s, 200),
        Acceptance((alpha * weight,) * 32, (weight,) * 32),
        verify_s,
        draft_s,
        10.0,
        0,
        300,
        usd_in=1e-6,
        usd_out=usd_out,
    )


FIGURES = st.builds(
    figures,
    st.floats(0.05, 0.99),
    st.floats(0.001, 1.0),
    st.floats(0.0001, 0.02),
    st.floats(0.005, 0.1),
    st.floats(1e-7, 1e-5),
    st.floats(1.0, 500.0),
)
OBJECTIVES = st.builds(
    Objective,
    st.sampled_from((1e-5, 0.01, 1.0)),
    st.integers(1, 64),
    st.sampled_from((0.0, 0.8, 1.0, 1.12)),
    st.sampled_from((0.0, 0.8, 1.0, 1.5)),
)


@given(OBJECTIVES, FIGURES, FIGURES, st.integers(0, 2**32), st.sampled_from((None, 1e-4, 1e-3)))
@example(
    Objective(0.01, 1),
    figures(0.75, 0.0078125, 0.00390625, 0.02734375, 9.96906285369943e-06, 1.0),
    figures(0.5, 1.0, 0.015625, 0.0625, 9.519714699825363e-06, 1.0),
    0,
    None,
)
@settings(max_examples=300, deadline=None)
def test_no_plan_breaks_a_limit(
    objective: Objective, a: Snapshot, b: Snapshot, seed: int, most: float | None
) -> None:
    """Neither ratio, the money there is, the largest K, nor the candidates."""
    ask = Ask(300, dollars=most, account=Account(allowance=1.0, dollars=1.0))
    plan = Adaptive(objective).plan(
        ask, OPTIONS, lambda c: b if c.drafter == "b" else a, random.Random(seed)
    )
    assert plan.k <= max(objective.max_num_speculative_tokens, 1)
    assert plan.reason
    if plan.method is Method.PLAIN:
        assert plan.k == 0
        return
    assert plan.drafter in ("a", "b")
    assert plan.predicted is not None
    assert plan.plain is not None
    if not plan.trial:  # A trial keeps them in the draw that it is tried for.
        assert objective.broken(plan.predicted, plan.plain) is None
    assert most is None or (plan.predicted.dollars or 0.0) <= most


@given(OBJECTIVES, FIGURES, st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_what_is_not_expected_to_win_is_a_trial(
    objective: Objective, seen: Snapshot, seed: int
) -> None:
    """And nothing is tried once the account is empty."""
    policy = Adaptive(objective)
    rich = Account(allowance=1.0, dollars=1.0)
    plan = policy.plan(Ask(300, account=rich), OPTIONS, lambda _: seen, random.Random(seed))
    if plan.method is not Method.PLAIN and not plan.trial:
        assert plan.predicted is not None
        assert plan.plain is not None
        assert objective.j(plan.predicted) < objective.j(plan.plain)
    empty = Account(allowance=-1.0)
    broke = policy.plan(Ask(300, account=empty), OPTIONS, lambda _: seen, random.Random(seed))
    assert broke.method is Method.PLAIN


def k_of(**changed: float) -> int:
    made = {
        "alpha": 0.8,
        "verify_s": 0.05,
        "draft_s": 0.004,
        "tpot_s": 0.04,
        "usd_out": 4e-6,
        "weight": 400.0,
    }
    return best_round(figures(**{**made, **changed}), 300, Objective(1.0)).k


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("verify_s", (0.01, 0.03, 0.1, 0.4, 0.9)),
        ("alpha", (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)),
        ("draft_s", (0.05, 0.02, 0.01, 0.004, 0.001)),
    ],
)
def test_k_grows_with_r_and_alpha_and_falls_with_d(name: str, values: tuple[float, ...]) -> None:
    """A dear round is made longer, a dear token is not drafted."""
    ks = [k_of(**{name: value}) for value in values]
    assert ks == sorted(ks)
    assert ks[0] < ks[-1]


@given(FIGURES, OBJECTIVES)
@settings(max_examples=200, deadline=None)
def test_the_marginal_rule_finds_the_best_k(seen: Snapshot, objective: Objective) -> None:
    """No other K has less J per token."""
    best = best_round(seen, 300, objective)
    fixed = (seen.verify_s or 0) + objective.weigh(300 * 1e-6) + objective.weigh(seen.usd_out)
    each = (seen.draft_s or 0) + objective.weigh(1e-6)
    reach = list(itertools.islice(rates(seen.acceptance), objective.max_num_speculative_tokens))
    survival = list(itertools.accumulate(reach, operator.mul))
    other = min((fixed + k * each) / (1 + sum(survival[:k])) for k in range(1, len(survival) + 1))
    assert best.j / best.tokens == pytest.approx(other, rel=1e-6)


@given(st.lists(st.floats(0.2, 5.0), max_size=60), st.floats(0.0, 0.02))
def test_losses_stop_speculation(ratios: list[float], share: float) -> None:
    """However each request turns out, what is lost while the account allowed it stays within the
    share of what was spent until then, a few times that at first, and the last request."""
    account, lost, most = Account(), 0.0, 0.0
    key = (None, "score", "d")
    for n, ratio in enumerate(ratios, 1):
        plain = account.allowance < 0
        spent = 1.0 if plain else ratio
        lost += spent - 1.0
        most = max(most, spent - 1.0)
        account = account.settle(Settled(key, spent, 1.0, plain=plain), share)
        assert lost <= min(EARLY * share * n, LENT + share * n) + most + 1e-9


def test_the_account_is_kept_in_dollars_too() -> None:
    """After requests that cost more than max_cost_ratio allows, only cheaper plans are left."""
    policy = Adaptive(Objective(1.0, max_cost_ratio=1.1))
    plain = Forecast(4.0, 0.001)
    plan = Plan(Method.SCORE, "a", 4, "")
    account = policy.settle(Account(), plan, Forecast(1.0, 0.0025), plain)
    assert account.dollars == pytest.approx(0.0010925 - 0.0025)
    dearer = 0
    for usd_in in (1e-7 * 1.03**n for n in range(120)):
        seen = replace(figures(0.9, 0.05, 0.004, 0.04, 4e-5, 400.0), usd_in=usd_in)
        for used, limit in ((Account(), 1.1), (account, 1.0)):
            chosen = policy.plan(
                Ask(300, account=used), OPTIONS, lambda _, s=seen: s, random.Random(1)
            )
            assert chosen.predicted is not None
            assert chosen.plain is not None
            ratio = (chosen.predicted.dollars or 0) / (chosen.plain.dollars or 1)
            assert ratio <= limit
            dearer += ratio > 1
    assert dearer


def test_plain_keeps_its_share_where_speculation_pays() -> None:
    """At most .5 % of all seconds: the yardstick is measured anew, rarely."""
    policy, account, yardsticks = Adaptive(Objective(1.0)), Account(), 0
    seen = figures(0.9, 0.05, 0.004, 0.04, 4e-6, 400.0)
    rng = random.Random(3)
    for _ in range(1000):
        plan = policy.plan(Ask(300, account=account), OPTIONS, lambda _: seen, rng)
        assert plan.plain is not None
        took = plan.plain if plan.yardstick else Forecast(plan.plain.seconds / 3, 0.001)
        yardsticks += plan.yardstick
        account = policy.settle(account, plan, took, plan.plain)
    assert account.yardstick <= 0.005 * account.spent
    assert 1 <= yardsticks <= 3

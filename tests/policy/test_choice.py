"""Policies choose by the figures alone: more where drafts survive, nothing where it would lose."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, Pace, Snapshot
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, RoundView
from specroute.policy.fixed import Fixed
from specroute.policy.forecast import score as one_at_a_time
from specroute.policy.objective import Objective
from specroute.types import Exactness, Method

SCORE = Candidate(Method.SCORE, "d", Exactness.EXACT)
BOTH = Candidates((PLAIN, SCORE))
ASK = Ask(context=100)
RNG = random.Random(7)


def rate(alpha: float, weight: float = 200.0, size: int = 16) -> Acceptance:
    return Acceptance(tuple(alpha * weight for _ in range(size)), (weight,) * size)


def figures(
    alpha: float = 0.9, verify: float = 0.05, tpot: float = 0.04, **more: object
) -> Snapshot:
    made = Snapshot(Pace(0.05, tpot, 100), rate(alpha), verify, 0.004, 50.0, 0, 100)
    return replace(made, **more)  # type: ignore[arg-type]


def view(**more: object) -> RoundView:
    made = RoundView(5, 20, None, Acceptance(), None, None)
    return replace(made, **more)  # type: ignore[arg-type]


def test_k_grows_with_survival() -> None:
    """And shrinks with it."""
    policy = Adaptive()
    ks = [policy.plan(ASK, BOTH, lambda _, a=a: figures(a), RNG).k for a in (0.6, 0.8, 0.9, 0.97)]  # type: ignore[misc]
    assert ks == sorted(set(ks))
    assert ks[0] >= 1


def test_a_drafts_own_provider_is_paid_as_well() -> None:
    """Every drafted token, the prompt once, and for each further draft the context as cached."""
    free = figures(usd_in=1e-6, usd_out=15e-6)
    billed = replace(free, usd_draft_in=1e-6, usd_draft_again=1e-7, usd_draft_out=2e-6)
    four = Objective(1.0, max_num_speculative_tokens=4)
    with_it, without = (one_at_a_time(each, ASK, four) for each in (billed, free))
    assert with_it is not None
    assert without is not None
    assert with_it.k == without.k == 4
    rounds = without.forecast.seconds / (0.05 + 4 * 0.004)
    more = (with_it.forecast.dollars or 0) - (without.forecast.dollars or 0)
    assert more == pytest.approx(1e-6 * 100 + 1e-7 * 150 * (rounds - 1) + 2e-6 * 4 * rounds)


def test_fewer_tokens_are_drafted_where_drafts_are_dear() -> None:
    """One that costs as much as the target's own, where dollars count."""
    free = figures(usd_in=1e-6, usd_out=15e-6)
    dear = Objective(0.001)
    few, many = (
        one_at_a_time(each, ASK, dear) for each in (replace(free, usd_draft_out=15e-6), free)
    )
    assert few is not None
    assert many is not None
    assert few.k < many.k


@pytest.mark.parametrize(
    ("snapshot", "method", "said"),
    [
        (figures(), Method.SCORE, "is predicted to take 1.4 s against plain's 4 s"),
        (figures(0.3), Method.PLAIN, "is predicted to run at 0.96 times the plain pace"),
        (figures(verify=0.5), Method.PLAIN, "predicted to run at"),
        (figures(0.98, verify=0.3), Method.SCORE, "is predicted to take"),
        (figures(pace=Pace()), Method.PLAIN, "the target's plain pace is measured first"),
        (figures(verify_s=None), Method.PLAIN, "its rounds are timed first"),
        (figures(usd_in=1e-8, usd_out=4e-8), Method.SCORE, "is predicted to take"),
        (figures(usd_in=2e-5, usd_out=2e-5), Method.PLAIN, "predicted to run at"),
    ],
)
def test_adaptive_speculates_only_where_it_pays(
    snapshot: Snapshot, method: Method, said: str
) -> None:
    """In seconds and dollars together, and says in one sentence why."""
    plan = Adaptive().plan(ASK, BOTH, lambda _: snapshot, RNG)
    assert plan.method is method
    assert said in plan.reason


def test_adaptive_without_a_candidate_says_why() -> None:
    """The reason is the candidates' own."""
    plan = Adaptive().plan(
        ASK, Candidates((PLAIN,), ((Method.SCORE, "no echo"),)), lambda _: figures(), RNG
    )
    assert (plan.method, plan.reason) == (Method.PLAIN, "no echo")


def test_adaptive_takes_the_better_drafter() -> None:
    """By predicted pace, not by order."""
    two = Candidates((PLAIN, SCORE, Candidate(Method.SCORE, "e", Exactness.EXACT)))
    plan = Adaptive().plan(ASK, two, lambda c: figures(0.95 if c.drafter == "e" else 0.7), RNG)
    assert plan.drafter == "e"


@pytest.mark.parametrize(
    ("seen", "snapshot", "goes_on"),
    [
        (view(), figures(), True),
        (view(own=rate(0.1, 20.0)), figures(verify=0.08), False),
        (view(rounds=1, own=rate(0.1, 5.0)), figures(), True),
        (view(verify_s=1.0), figures(), False),
        (view(), figures(usd_in=2e-5, usd_out=2e-5, context=3000), False),
        (view(own=rate(0.1, 5.0), remaining=2), figures(pace=Pace(9.0, 0.04, 100)), True),
    ],
)
def test_rounds_that_lose_hand_over(seen: RoundView, snapshot: Snapshot, goes_on: bool) -> None:
    """By this request's own rounds, not before two of them, and not where starting anew costs more."""
    assert (Adaptive().next_k(seen, snapshot) > 0) == goes_on


def test_no_round_drafts_more_than_is_left() -> None:
    """One place is kept for the target's own token."""
    assert Adaptive().next_k(view(remaining=3), figures(0.99)) <= 2
    assert Adaptive(max_rounds=5).next_k(view(), figures()) == 0


def test_fixed_does_as_it_is_told() -> None:
    """Whatever was measured; what can't be done is plain, with the reason."""
    policy = Fixed(Method.SCORE, 6, 2)
    assert policy.plan(ASK, BOTH, lambda _: figures(0.01), RNG).k == 6
    assert policy.next_k(view(rounds=1), figures(0.01)) == 6
    assert policy.next_k(view(rounds=2), figures()) == 0
    assert Fixed(Method.SCORE, 0).plan(ASK, BOTH, lambda _: figures(), RNG).method is Method.PLAIN
    none = Candidates((PLAIN,), ((Method.PREFIX, "no prefill"),))
    assert Fixed(Method.PREFIX).plan(ASK, none, lambda _: figures(), RNG).reason == "no prefill"


def test_a_floor_removes_looser_plans() -> None:
    """And says so where it was the reason."""
    loose = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.BOUNDED)))
    assert loose.at_least(Exactness.BOUNDED).of(Method.SCORE)
    strict = loose.at_least(Exactness.EXACT)
    assert strict.plans == (PLAIN,)
    assert "only be bounded" in strict.why_not(Method.SCORE)
    greedy = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.EXACT_GREEDY)))
    assert greedy.at_least(Exactness.EXACT).of(Method.SCORE)

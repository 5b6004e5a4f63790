"""Answers of very different lengths in one class: neither the estimate nor the plan swings."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean

import pytest

from specroute.measure import Measurements
from specroute.policy.adaptive import Adaptive
from specroute.policy.objective import Objective
from specroute.simulate.oracle import best, fixed_plans
from specroute.simulate.run import plain_outcome, run
from specroute.simulate.scenario import Scenario
from specroute.simulate.world import Synthetic


@pytest.mark.parametrize("short", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_short_answers_is_no_change(short: float, seed: int) -> None:
    """Of 8 and of 800 tokens; after 40 answers the mean is known within a factor of two or so."""
    rng, seen, told = random.Random(seed), Measurements(), []
    for _ in range(240):
        usual = 8 if rng.random() < short else 800
        seen.answer("t", "chat", max(1, round(usual * rng.gauss(1.0, 0.2))))
        told.append(seen.snapshot("t", "", "chat").pace.answer_tokens or 0.0)
    mean = 8 * short + 800 * (1 - short)
    assert 0.3 * mean < min(told[40:])
    assert max(told[40:]) < 2.6 * mean
    assert fmean(told[40:]) == pytest.approx(mean, rel=0.3)


def test_new_lengths_are_followed() -> None:
    """Within some twenty answers."""
    seen = Measurements()
    for n in range(80):
        seen.answer("t", "chat", 600 if n < 60 else 60)
    found = seen.snapshot("t", "", "chat").pace.answer_tokens
    assert found is not None
    assert found < 300


@pytest.mark.parametrize(("alpha", "r"), [(0.9, 0.03), (0.5, 0.1)])
def test_the_plan_is_as_good_as_with_one_length(alpha: float, r: float) -> None:
    """Half of the answers have 8 tokens: still no slower than plain where drafts lose, and near the
    best fixed plan where they win."""
    world = Synthetic(Scenario(alpha, r, short=0.5, tokens=500, requests=160))
    plain = sum(plain_outcome(world, world.targets[0]).seconds)
    outcome = run(world, Adaptive(Objective(1.0)))
    assert sum(outcome.seconds) < 1.02 * plain
    _, oracle = best(fixed_plans(world), 80, 160)
    assert fmean(outcome.seconds[80:]) < 1.1 * oracle
    # What a class is planned as doesn't change from one request to the next.
    methods = outcome.methods[80:]
    changes = sum(a != b for a, b in pairwise(methods))
    assert changes <= 8

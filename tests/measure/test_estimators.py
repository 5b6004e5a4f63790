"""Estimators follow drift, bear single outliers, and are quick after a step."""

from __future__ import annotations

import math
import random

import pytest

from specroute.measure import Mean
from specroute.measure.level import Factor, Frequency, Level, Share
from specroute.measure.regression import Regression


def noisy(rng: random.Random, mean: float, spread: float = 0.15) -> float:
    return mean * math.exp(rng.gauss(0, spread))


def settled(mean: float = 0.1, spread: float = 0.15, n: int = 200) -> tuple[Level, random.Random]:
    rng = random.Random(5)
    level = Level()
    for _ in range(n):
        level.add(noisy(rng, mean, spread))
    return level, rng


def test_a_level_is_unknown_until_something_was_seen() -> None:
    """And then that."""
    level = Level()
    assert (level.value, level.estimate()) == (None, None)
    level.add(0.2)
    assert level.value == pytest.approx(0.2)


def test_single_outliers_hardly_move_a_level() -> None:
    """One value at a hundred times the mean."""
    level, _ = settled()
    before = level.value
    assert before is not None
    level.add(10.0)
    assert level.value is not None
    assert level.value < 1.1 * before


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0, 40.0])
def test_a_level_follows_a_step_within_six_values(factor: float) -> None:
    """Up or down; and takes it for one step, not for several."""
    level, rng = settled()
    for _ in range(6):
        level.add(noisy(rng, 0.1 * factor))
    assert level.value == pytest.approx(0.1 * factor, rel=0.25)
    assert level.steps == 1


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5, 1.0])
def test_scatter_alone_is_no_step(spread: float) -> None:
    """In 5,000 values."""
    level, _ = settled(spread=spread, n=5000)
    assert level.steps == 0


def test_intervals_hold_the_mean() -> None:
    """In nine of ten runs, or more: the interval counts values for less than they are."""
    rng = random.Random(9)
    inside = 0
    for _ in range(200):
        level = Level()
        for _ in range(60):
            level.add(noisy(rng, 1.0, 0.2))
        estimate = level.estimate()
        assert estimate is not None
        inside += estimate.low <= math.exp(0.02) <= estimate.high
    assert inside >= 175


def law(rng: random.Random, factor: float = 1.0) -> tuple[float, float, float]:
    context, k = rng.uniform(100, 4000), float(rng.choice((2, 4, 8)))
    return context, k, factor * noisy(rng, 0.05 + 1e-5 * context + 0.001 * k, 0.1)


def fitted(n: int = 300) -> tuple[Regression, random.Random]:
    rng = random.Random(6)
    found = Regression((1000.0, 10.0), (0.02, 0.02), decay=0.99)
    for _ in range(n):
        found.add(*law(rng))
    return found, rng


def test_a_regression_finds_the_law() -> None:
    """Its value at a context and K is within its interval of the true one, and near it."""
    found, _ = fitted()
    for context, k in ((200, 2), (1000, 4), (4000, 8)):
        estimate = found.law().at(context, k)  # type: ignore[union-attr]
        true = (0.05 + 1e-5 * context + 0.001 * k) * math.exp(0.005)
        assert estimate.low * 0.97 <= true <= estimate.high * 1.03
        assert estimate.mean == pytest.approx(true, rel=0.06)


def test_a_law_from_one_observation_is_that_observation() -> None:
    """With slopes as they may be, so that it is less sure elsewhere."""
    found = Regression((1000.0, 10.0), (0.02, 0.02))
    found.add(500, 4, 0.08)
    here, far = found.law().at(500, 4), found.law().at(8000, 4)  # type: ignore[union-attr]
    assert here.mean == pytest.approx(0.08, rel=0.02)
    assert far.high - far.low > 2 * (here.high - here.low)


def test_no_mix_of_lengths_loads_and_times_leaves_a_law_unsolved() -> None:
    """From a nanosecond to days, from empty prompts to ten million tokens."""
    rng = random.Random(1)
    for _ in range(300):
        found = Regression((1000.0, 10.0), (0.05, 0.2))
        for _ in range(6):
            context, others = rng.choice((0, 10, 500, 10**7)), rng.choice((0, 3, 1000))
            found.add(context, others, rng.choice((1e-9, 0.02, 0.5, 30.0, 1e6)))
        law = found.law()
        assert law is not None
        assert math.isfinite(law.at(500, 1).mean)


def test_slopes_are_never_below_zero() -> None:
    """Longer prompts take no less time, whatever a few observations look like."""
    found = Regression((1000.0, 10.0), (0.02, 0.02))
    for context, seconds in ((100, 0.2), (200, 0.19), (4000, 0.05), (5000, 0.05)):
        found.add(context, 4, seconds)
    assert found.law().per_x == 0  # type: ignore[union-attr]


def test_a_step_of_the_law_is_followed_within_four_rounds() -> None:
    """R from 10 to 400 ms: the old law is forgotten, slopes start from their prior."""
    found, rng = fitted()
    for _ in range(4):
        context, k, seconds = law(rng)
        found.add(context, k, seconds + 0.39)
    assert found.epoch == 1
    assert found.law().at(1000, 4).mean == pytest.approx(0.454, rel=0.15)  # type: ignore[union-attr]


def test_one_stalled_round_is_no_step() -> None:
    """Sixty times the usual time, once."""
    found, rng = fitted()
    before = found.law().at(1000, 4).mean  # type: ignore[union-attr]
    found.add(1000, 4, 3.0)
    for _ in range(3):
        found.add(*law(rng))
    assert found.epoch == 0
    assert found.law().at(1000, 4).mean == pytest.approx(before, rel=0.1)  # type: ignore[union-attr]


def test_a_class_is_drawn_towards_its_target() -> None:
    """By one value a little, by many almost not; and starts anew when the target's law does."""
    factor = Factor()
    assert factor.estimate(0).mean == 1.0
    factor.add(2.0, 0)
    assert 1.0 < factor.estimate(0).mean < 1.6
    for _ in range(40):
        factor.add(2.0, 0)
    assert factor.estimate(0).mean == pytest.approx(2.0, rel=0.1)
    assert factor.estimate(1).mean == 1.0


def test_shares_and_frequencies() -> None:
    """Events per opportunity, with an interval even where none was seen."""
    share, draws = Share(), Frequency()
    assert (share.estimate(), draws.estimate()) == (None, None)
    for i in range(40):
        share.add(i % 4 == 0)
        draws.add(3, 6)
    rate, often = share.estimate(), draws.estimate()
    assert rate is not None
    assert often is not None
    assert rate.low < 0.25 < rate.high
    assert often.mean == pytest.approx(0.5)
    never = Share()
    never.add(0)
    seen = never.estimate()
    assert seen is not None
    assert seen.high > 0.2


def test_means_follow_drift() -> None:
    """Old values fade."""
    mean = Mean(0.5)
    assert mean.value is None
    for value in (1.0, 1.0, 5.0, 5.0, 5.0):
        mean.add(value)
    assert mean.value is not None
    assert mean.value > 4.5

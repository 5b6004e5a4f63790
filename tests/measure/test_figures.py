"""Figures come with intervals that hold what they should, and can be drawn from."""

from __future__ import annotations

import math
import random

import pytest

from specroute.measure import Acceptance, Estimate, Law, Snapshot


def test_an_estimate_keeps_within_its_range() -> None:
    """No seconds below 0, no share above 1."""
    wide = Estimate.around(0.1, 1.0, 3.0)
    assert (wide.low, wide.mean) == (0.0, 0.1)
    assert Estimate.around(0.9, 1.0, 3.0, most=1.0).high == 1.0
    rate = Estimate.of_rate(0.5, 99.5)
    assert 0 < rate.low < rate.mean == 0.005 < rate.high < 0.05


def test_draws_fall_into_the_interval_nine_times_in_ten() -> None:
    """So that Thompson sampling explores as much as is not known."""
    rng = random.Random(1)
    estimate = Estimate(2.0, 1.5, 4.0, 9.0)
    drawn = [estimate.draw(rng) for _ in range(4000)]
    inside = sum(estimate.low <= x <= estimate.high for x in drawn) / len(drawn)
    assert inside == pytest.approx(0.9, abs=0.02)
    assert Estimate.exactly(2.0).draw(rng) == 2.0


def test_a_law_is_less_sure_far_from_what_was_seen() -> None:
    """Its interval widens with the distance, and its value never falls below the least."""
    law = Law(0.1, 1e-5, 1e-3, (1e-4, 0.0, 0.0, 1e-10, 0.0, 1e-8), 20.0, 0.02)
    near, far = law.at(100, 4), law.at(50_000, 4)
    assert near.mean == pytest.approx(0.105)
    assert far.high - far.low > near.high - near.low
    assert Law(0.1, -1e-3, least=0.02).at(1000, 0).mean == 0.02


def test_a_class_has_its_own_factor_on_a_law() -> None:
    """And what isn't known of the factor isn't known of the value."""
    law = Law(0.1, factor=Estimate(2.0, 1.0, 3.0, 4.0))
    found = law.at(0, 0)
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.1, 0.3))


def test_posteriors_are_right_censored() -> None:
    """A position that was never judged has the rate over all, with little weight."""
    seen = Acceptance((50.0, 50.0), (100.0, 50.0))
    (a0, b0), (a1, b1), (a2, b2) = seen.posterior(3)
    assert a0 / (a0 + b0) == pytest.approx(0.5, abs=0.01)
    assert a1 / (a1 + b1) > 0.95
    assert a2 + b2 == 2.0
    assert seen.survival(3)[2] < seen.survival(3)[1]


def test_a_prior_counts_as_a_few_tokens() -> None:
    """However much is behind it."""
    prior = Acceptance((900.0,), (1000.0,))
    own = Acceptance((10.0,), (50.0,))
    (a, b), *_ = own.posterior(1, prior)
    assert a + b == 58.0
    assert a / (a + b) == pytest.approx((10 + 0.9 * 8) / 58, abs=0.002)


def test_drawn_survival_scatters_as_the_posterior() -> None:
    """Its mean is the survival's, its spread that of the interval."""
    rng = random.Random(3)
    seen = Acceptance((80.0, 60.0), (100.0, 80.0))
    drawn = [seen.draw(2, rng)[1] for _ in range(4000)]
    estimate = seen.estimates(2)[1]
    assert sum(drawn) / len(drawn) == pytest.approx(estimate.mean, abs=0.01)
    inside = sum(estimate.low <= x <= estimate.high for x in drawn) / len(drawn)
    assert inside == pytest.approx(0.9, abs=0.03)


def test_evidence_that_resembles_itself_counts_for_less() -> None:
    """Dispersion widens the interval and leaves the mean."""
    alone = Acceptance((80.0,), (100.0,))
    alike = Acceptance((80.0,), (100.0,), 4.0)
    narrow, wide = alone.estimates(1)[0], alike.estimates(1)[0]
    assert wide.mean == pytest.approx(narrow.mean, abs=0.01)
    assert math.log(wide.high / wide.low) > 1.7 * math.log(narrow.high / narrow.low)


def test_an_input_price_has_its_share_of_cached_tokens() -> None:
    """Where share and price are known; else all of it is at the full price."""
    known = Snapshot(usd_in=1e-6, usd_cached=1e-7, cached=Estimate(0.5, 0.4, 0.6, 9))
    assert known.usd_prompt == pytest.approx(5.5e-7)
    assert known.usd_round_prompt == 1e-6
    assert Snapshot().usd_prompt is None


def test_figures_that_are_unknown_are_none() -> None:
    """Never 0."""
    empty = Snapshot()
    assert empty.round_time(100, 4) is None
    assert empty.ttft() is None
    assert empty.tpot() is None
    assert empty.first_draft(100) is None


def test_pace_is_asked_for_this_request_now() -> None:
    """Prompt length and requests in flight are the snapshot's own where nothing else is said."""
    law = Law(0.05, 1e-4, 0.01)
    seen = Snapshot(ttft_law=law, tpot_law=law, prompt_tokens=1000, in_flight=3)
    assert seen.ttft() == law.at(1000, 3)
    assert seen.tpot(context=10, in_flight=0) == law.at(10, 0)

"""A change of R that plain calls see moves the law of scoring requests, and is counted once."""

from __future__ import annotations

import pytest

from specroute.measure import Measurements


def rounds(seen: Measurements, r: float, n: int) -> None:
    for _ in range(n):
        seen.verify_time("t", "argmax", r + 0.03, context=500, k=4)


def plain(seen: Measurements, r: float, n: int) -> None:
    for _ in range(n):
        seen.plain("t", "c", ttft_s=r + 0.02, tpot_s=0.03, tokens=100, prompt_tokens=500)


def round_s(seen: Measurements) -> float:
    found = seen.snapshot("t", "d", "c", "argmax", prompt_tokens=500).round_time(500, 4)
    assert found is not None
    return found.mean


def settled() -> Measurements:
    seen = Measurements()
    for _ in range(20):
        plain(seen, 0.01, 2)
        rounds(seen, 0.01, 4)
    assert round_s(seen) == pytest.approx(0.04, rel=0.05)
    return seen


def test_plain_calls_alone_show_that_r_has_grown() -> None:
    """Ten plain calls, no round."""
    seen = settled()
    plain(seen, 0.4, 10)
    assert round_s(seen) == pytest.approx(0.43, rel=0.15)


def test_and_that_it_has_fallen_again() -> None:
    """Without a single round between."""
    seen = settled()
    plain(seen, 0.4, 10)
    plain(seen, 0.01, 10)
    assert round_s(seen) == pytest.approx(0.04, rel=0.3)


def test_a_change_is_not_counted_twice() -> None:
    """Rounds that saw it first, then plain calls that say the same."""
    seen = settled()
    rounds(seen, 0.4, 10)
    plain(seen, 0.4, 10)
    assert round_s(seen) == pytest.approx(0.43, rel=0.1)


def test_rounds_after_plain_calls_confirm_the_change() -> None:
    """And the law is then theirs."""
    seen = settled()
    plain(seen, 0.4, 10)
    rounds(seen, 0.4, 10)
    plain(seen, 0.4, 10)
    assert round_s(seen) == pytest.approx(0.43, rel=0.1)


def test_what_rounds_alone_have_lost_is_not_given_back() -> None:
    """Scoring became slow, plain calls did not: it stays slow."""
    seen = settled()
    rounds(seen, 0.4, 10)
    plain(seen, 0.01, 10)
    assert round_s(seen) == pytest.approx(0.43, rel=0.1)


def test_what_is_not_tried_is_less_and_less_sure() -> None:
    """Its rate stays, its weight goes, down to a few tokens; the parent's stays as it was."""
    seen = Measurements()
    for _ in range(200):
        seen.round(
            "t", "d", "c", drafted=4, accepted=1, judged=2, draft_s=0.01, verify_s=0.05,
            how="argmax",
        )  # fmt: skip
    before = seen.snapshot("t", "d", "c", "argmax")
    for _ in range(100):
        seen.planned("t", "d", "c", tried=False, how="argmax")
    after = seen.snapshot("t", "d", "c", "argmax")
    assert after.rounds_seen.rate == pytest.approx(before.rounds_seen.rate)
    assert 10 < after.rounds_seen.weight < before.rounds_seen.weight / 5
    near, far = before.round_time(0, 4), after.round_time(0, 4)
    assert near is not None
    assert far is not None
    assert far.high - far.low > near.high - near.low

"""What is measured comes out as figures of the right key, with what the class lacks borrowed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from specroute.measure import Measurements, Pace, Snapshot
from specroute.measure.files import MOST_CLASSES
from specroute.types import Attempt, Usage

A, B = "chat#a/prose/1k", "chat#b/prose/1k"


def test_snapshots_do_not_change() -> None:
    """Later rounds are in later snapshots only."""
    seen = Measurements()
    before = seen.snapshot("t", "d", "c")
    seen.round("t", "d", "c", drafted=4, accepted=2, judged=3, draft_s=0.04, verify_s=0.5)
    seen.plain("t", "c", ttft_s=0.2, tpot_s=0.05, tokens=10)
    after = seen.snapshot("t", "d", "c")
    assert before == Snapshot(of_its_own=0.0)
    rates = [p / n for p, n in zip(after.acceptance.passed, after.acceptance.judged, strict=True)]
    assert rates == [1, 1, 0]
    assert (after.verify_s, after.draft_s) == (pytest.approx(0.5), pytest.approx(0.01))
    assert after.pace == Pace(pytest.approx(0.2), pytest.approx(0.05), 10)
    with pytest.raises(FrozenInstanceError):
        after.verify_s = 1.0  # type: ignore[misc]


def test_a_class_without_figures_borrows_the_targets() -> None:
    """Its own count more and more as there are some."""
    seen = Measurements()
    for _ in range(20):
        seen.plain("t", A, ttft_s=0.2, tpot_s=0.05, tokens=50)
    seen.round("t", "d", A, drafted=1, accepted=1, judged=1, draft_s=0.0, verify_s=0.1)
    unknown = seen.snapshot("t", "d", B)
    assert unknown.pace == Pace(pytest.approx(0.2), pytest.approx(0.05), pytest.approx(50))
    assert unknown.acceptance.weight > 0
    assert unknown.rounds_seen.weight == 0
    for _ in range(20):
        seen.plain("t", A, ttft_s=0.2, tpot_s=0.05, tokens=50)
        seen.plain("t", B, ttft_s=0.2, tpot_s=0.07, tokens=200)
    slower, own = seen.snapshot("t", "d", B).pace, seen.snapshot("t", "d", A).pace
    assert slower.tpot_s == pytest.approx(0.07, rel=0.08)
    assert own.tpot_s == pytest.approx(0.05, rel=0.08)
    assert slower.answer_tokens is not None
    assert slower.answer_tokens > 150


def test_first_token_by_prompt_length_and_load() -> None:
    """Long prompts and a busy target take longer, and the snapshot asks for its own request."""
    seen = Measurements()
    for i in range(200):
        prompt, busy = 100 + 37 * i % 4000, i % 5
        seconds = 0.05 + 5e-5 * prompt + 0.02 * busy
        seen.plain(
            "t", A, ttft_s=seconds, tpot_s=0.03, tokens=60, prompt_tokens=prompt, in_flight=busy
        )
    seen.begin("t")
    alone = seen.snapshot("t", "d", A, prompt_tokens=2000)
    for _ in range(3):
        assert seen.begin("t") >= 1
    busy_now = seen.snapshot("t", "d", A, prompt_tokens=2000)
    first, second = alone.ttft(), busy_now.ttft()
    assert first is not None
    assert second is not None
    assert first.mean == pytest.approx(0.15, rel=0.1)
    assert second.mean == pytest.approx(0.21, rel=0.1)
    for _ in range(4):
        seen.end("t")
    assert seen.snapshot("t", "d", A).in_flight == 0


def test_a_whole_answer_tells_the_pace_of_its_tokens() -> None:
    """Its time less the time to a first token, where that is known and is the lesser part."""
    seen = Measurements()
    seen.whole("t", A, total_s=3.1, tokens=101)
    assert seen.snapshot("t", "d", A).pace == Pace(None, None, 101)
    seen.first_pace("t", ttft_s=0.1, tpot_s=0.2)
    for _ in range(30):
        seen.whole("t", A, total_s=3.1, tokens=101)
    assert seen.snapshot("t", "d", A).pace.tpot_s == pytest.approx(0.03, rel=0.05)


def test_a_rough_first_pace_gives_way_to_plain_answers() -> None:
    """Calibration's counts as a tenth of one."""
    seen = Measurements()
    seen.first_pace("t", ttft_s=0.1, tpot_s=0.05)
    assert seen.snapshot("t", "d", A).pace.tpot_s == pytest.approx(0.05)
    for _ in range(3):
        seen.plain("t", A, ttft_s=0.1, tpot_s=0.03, tokens=100)
    assert seen.snapshot("t", "d", A).pace.tpot_s == pytest.approx(0.03, rel=0.1)


def test_draws_are_figures_of_their_own() -> None:
    """How many a judged token takes and how long one is; the scoring request's time is without."""
    seen = Measurements()
    for i in range(60):
        drawn = int(i % 2 == 0)
        seen.round(
            "t",
            "d",
            A,
            drafted=4,
            accepted=1,
            judged=2,
            draft_s=0.01,
            verify_s=0.05,
            how="rules",
            context=500,
            draws=drawn,
            draws_s=0.04 * drawn,
        )
    found = seen.snapshot("t", "d", A, "rules")
    scoring = found.round_time(500, 4)
    assert found.draws is not None
    assert found.draw is not None
    assert scoring is not None
    assert found.draws.mean == pytest.approx(0.25, rel=0.01)
    assert found.draw.mean == pytest.approx(0.04)
    assert scoring.mean == pytest.approx(0.05, rel=0.02)
    assert found.verify_s == pytest.approx(0.07, rel=0.05)


def test_calls_tell_of_failures_refusals_and_cached_input() -> None:
    """What the caller ended says nothing; a refusal for too many requests is no failure."""
    seen = Measurements()
    usage = Usage(1000, 10, 600)
    plain, first = Attempt("t", "plain", "ok", 1.0, usage), Attempt("t", "score", "ok", 1.0, usage)
    further = Attempt("t", "score", "ok", 1.0, Usage(1000, 1, 0))
    for _ in range(3):
        seen.attempted([plain])
        # A request's first scoring request reads no more from the cache than a plain call.
        seen.attempted([first, further, further])
    for outcome in ("status 429", "status 500", "cancelled"):
        seen.attempted([Attempt("t", "plain", outcome, 0.1)])
    found = seen.snapshot("t", "d", A)
    assert found.failures is not None
    assert found.limited is not None
    assert found.cached is not None
    assert found.round_cached is not None
    assert found.failures.weight == pytest.approx(13, rel=0.2)
    assert 0 < found.failures.mean < 0.2
    assert found.limited.weight == pytest.approx(14, rel=0.2)
    assert found.cached.mean == pytest.approx(0.6, abs=0.05)
    assert found.round_cached.mean < 0.1


def test_a_draft_is_no_part_of_what_could_be_cached() -> None:
    """A round of 16 drafted tokens after 150 that are all cached: it is billed so, and they are
    counted as new input by themselves."""
    seen = Measurements()
    first = Attempt("t", "score", "ok", 1.0, Usage(166, 1, 0), drafted=16)
    further = Attempt("t", "score", "ok", 1.0, Usage(166, 1, 150), drafted=16)
    for _ in range(10):
        seen.attempted([first, *[further] * 5])
    found = seen.snapshot("t", "d", A)
    assert found.round_cached is not None
    assert found.round_cached.mean > 0.98


def test_calibration_shows_that_rounds_will_be_cached() -> None:
    """It scores what the server has just generated. Where nothing was cached it says nothing: the
    context is too short for many servers' caches. Real rounds soon count for more."""
    seen = Measurements()
    seen.read_again("t", Attempt("t", "calibrate", "ok", 0.1, Usage(44, 1, 0), drafted=11))
    assert seen.snapshot("t", "d", A).round_cached is None
    seen.read_again("t", Attempt("t", "calibrate", "ok", 0.1, Usage(44, 1, 32), drafted=11))
    known = seen.snapshot("t", "d", A).round_cached
    assert known is not None
    assert known.mean > 0.6
    for _ in range(10):
        seen.attempted([Attempt("t", "score", "ok", 0.1, Usage(500, 1, 0)) for _ in range(4)])
    found = seen.snapshot("t", "d", A).round_cached
    assert found is not None
    assert found.mean < 0.1


def test_a_first_draft_reads_the_prompt() -> None:
    """What it takes beyond its tokens' own time, by the prompt's length."""
    seen = Measurements()
    seen.draft_time("d", 0.004)
    for i in range(40):
        context = 200 + 100 * i
        seen.first_draft("d", 5 * 0.004 + 1e-4 * context, context=context, drafted=5)
    found = seen.snapshot("t", "d", A).first_draft(2000)
    assert found is not None
    assert found.mean == pytest.approx(0.2, rel=0.1)


def test_acceptance_is_told_apart_by_the_drafts_temperature() -> None:
    """Where it was sampled; a greedy draft has none."""
    seen = Measurements()
    for temperature, accepted in ((None, 2), (0.5, 3), (1.0, 1)):
        seen.round(
            "t",
            "d",
            A,
            drafted=4,
            accepted=accepted,
            judged=accepted + 1,
            draft_s=None,
            verify_s=None,
            temperature=temperature,
        )
    found = seen.snapshot("t", "d", A).by_temperature
    assert [t for t, _ in found] == [0.5, 1.0]
    assert [acceptance.rate for _, acceptance in found] == [3 / 4, 1 / 2]


def test_requests_since_a_draft_was_tried_are_counted() -> None:
    """A class at a time."""
    seen = Measurements()
    for tried in (False, False, True, False):
        seen.planned("t", "d", "a", tried=tried)
    assert seen.snapshot("t", "d", "a").since_tried == 1
    assert seen.snapshot("t", "d", "b").since_tried == 0


def test_classes_that_were_not_seen_for_long_make_room() -> None:
    """However many system prompts there are; what they have in common stays."""
    seen = Measurements()
    for i in range(2 * MOST_CLASSES):
        seen.round(
            "t", "d", f"chat#{i}/prose/1k", drafted=1, accepted=1, judged=1, draft_s=None,
            verify_s=None, at=float(i),
        )  # fmt: skip
        seen.answer("t", f"chat#{i}/prose/1k", 50, at=float(i))
    assert len(seen.rounds) <= MOST_CLASSES + 2
    assert len(seen.classes) <= MOST_CLASSES + 2
    assert seen.snapshot("t", "d", "chat#new/prose/1k").acceptance.judged == (8.0,)


def test_figures_taken_over_leave_the_crowd_as_it_is() -> None:
    """Who is under way, at the target and at the drafter, and what the load was seen to cost."""
    seen, fresh = Measurements(), Measurements()
    fresh.pace("t", "c", ttft_s=0.1, tpot_s=0.03, tokens=80)
    for _ in range(3):
        seen.begin("t", 10.0)
    seen.drafts["d"].crowd.begin(10.0)
    mark, drafting = seen.targets["t"].crowd.mark(10.0), seen.drafts["d"].crowd
    seen.take_over(fresh)
    assert seen.crowd("t", "d").others == 2
    assert seen.drafts["d"].crowd is drafting
    crowd = seen.targets["t"].crowd
    assert crowd.pace is seen.targets["t"].tpot
    assert crowd.others_since(mark, 11.0) == pytest.approx(2.0)
    for _ in range(3):
        seen.end("t", 12.0)
    assert seen.others("t") == 0
    assert crowd.others_since(crowd.mark(13.0), 14.0) == 0.0
    assert seen.snapshot("t", "d", "c").pace.tpot_s == pytest.approx(0.03)


@pytest.mark.parametrize(("cached", "share"), [(32, 1.0), (16, 0.4)])
def test_a_short_context_of_which_whole_blocks_were_found_is_found_whole(
    cached: int, share: float
) -> None:
    """What is left of a block at its end can't be cached: of a long context that is next to none."""
    seen = Measurements()
    seen.read_again("t", Attempt("t", "calibrate", "ok", 0.1, Usage(44, 1, cached), drafted=4))
    found = seen.snapshot("t", "d", "c").round_cached
    assert found is not None
    assert found.mean == pytest.approx(share, abs=0.05)

"""The sale day's arithmetic and criteria; ``make bench-sale`` measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.sale import publish
from bench.sale.__main__ import Found, turns
from bench.sale.judging import Plain, Row, figures, row, verdicts
from bench.sale.running import DRAFT, TARGET, Bill, Outcome, config
from bench.sale.settings import ALONE, BESIDE, EVERY, PLAIN, RISING, named
from bench.sale.traffic import Answer, arrivals, capacity
from specroute.config import parse
from specroute.policy.make import make_policy
from specroute.reference.access_log import Record
from specroute.reference.pace import Pace
from specroute.types import Report

NOTHING = Bill(0, 0, 0, 0, 0.0, 0.0)


def outcome(name: str, ttft: float, seconds: float, usd: float, **report: object) -> Outcome:
    """Two answers, the second of which is not the target's own."""
    found = Report(id="r", model="m", **report) if report else None  # type: ignore[arg-type]
    answers = [Answer(text, ttft, seconds, 10, 5, 0, found) for text in ("a", "b")]
    bill = Bill(2, 20, 0, 10, usd, usd / 2)
    return Outcome(named(name), answers, seconds, bill, NOTHING, 0.0, 0.1)


def against(found: Outcome, own: tuple[str, str] = ("a", "b")) -> tuple[Row, Row]:
    """(its row, plain's)."""
    plain = outcome(PLAIN, 1.0, 100.0, 1.0)
    means = Plain.of(plain)
    return row(found, means, own), row(plain, means, own)


def test_changes_are_against_plain() -> None:
    """A third of the first token's time, four times the throughput, a tenth dearer."""
    made, plain = against(outcome("score K = 16", 1 / 3, 25.0, 1.1, drafted=8, accepted=4))
    assert (made.ttft, made.throughput, made.cost) == pytest.approx((-66.67, 300, 10), abs=0.01)
    assert (plain.ttft, plain.throughput, plain.cost) == (0, 0, 0)
    assert (made.accepted, made.speculated, made.identical) == (0.5, 1, 1)
    assert figures(made, plain) == {}


@pytest.mark.parametrize(
    ("ttft", "seconds", "held"),
    [(0.9, 99.0, [True, True]), (1.1, 99.0, [False, True]), (0.9, 110.0, [True, False])],
)
def test_an_exact_setting_beats_plains_first_token_and_keeps_its_throughput(
    ttft: float, seconds: float, held: list[bool]
) -> None:
    """Each by itself; the article's figures are shown beside, with the reasons."""
    report = {"drafted": 8, "exactness": "exact-greedy"}
    made, plain = against(outcome("score K = 16", ttft, seconds, 2.0, **report))
    assert [verdict.held for verdict in verdicts(made, plain)] == held
    assert set(figures(made, plain)) == {"TTFT", "throughput", "cost"}
    lines, good = publish.criteria([plain, made])
    assert good is all(held)
    assert sum("not had" in line for line in lines) == 3


def test_one_that_only_passes_calls_on_need_not_be_earlier() -> None:
    """It sends the very same calls; why it does is said."""
    why = {"exactness": "exact", "plan_reason": "20 requests in flight at a:b: K = 4 is too dear"}
    made, plain = against(outcome("specroute, plain", 1.1, 100.5, 1.0, **why))
    first, throughput = verdicts(made, plain)
    assert (first.held, throughput.held) == (None, True)
    assert "100% plain calls (2x K = N is too dear)" in first.said


def test_a_whole_draft_is_not_held_to_an_earlier_first_token() -> None:
    """Nothing can be shown before it is there and scored. Its throughput counts."""
    report = {"drafted": 8, "exactness": "exact-greedy"}
    made, plain = against(outcome("cascade", 1.2, 90.0, 1.0, **report))
    assert [verdict.held for verdict in verdicts(made, plain)] == [None, True]
    made, plain = against(outcome("cascade", 0.9, 90.0, 1.0, **report))
    assert [verdict.held for verdict in verdicts(made, plain)] == [True, True]


@pytest.mark.parametrize(("seconds", "held"), [(105.9, True), (106.5, False)])
def test_what_plain_differs_by_itself_is_no_loss(seconds: float, held: bool) -> None:
    """Two runs of 100 and 104 s: 4 % less than their mean isn't told from it, 5 % is."""
    runs = [outcome(PLAIN, 1.0, took, 1.0) for took in (100.0, 104.0)]
    made = row(outcome("cost", 0.9, seconds, 1.0, drafted=8), Plain.of(*runs), ("a", "b"))
    assert made.same == pytest.approx(4)
    assert verdicts(made, made)[1].held is held


def test_every_row_is_compared_with_plain_under_its_own_conditions() -> None:
    """Those that ran in pairs with the AsyncOpenAI that did; without one they are no rows."""
    beside = replace(named(PLAIN), name="AsyncOpenAI, beside")
    found = Found(
        [outcome(PLAIN, 1.0, 100.0, 1.0), outcome("cost", 1.0, 50.0, 1.0, drafted=1)],
        [
            replace(outcome(PLAIN, 1.0, 150.0, 1.0), setting=beside),
            outcome("cascade", 1.0, 100.0, 1.0, drafted=1),
        ],
    )
    alone, pairs = found.groups(("a", "b"))
    assert [r.throughput for r in alone] == pytest.approx([0, 100])
    assert [r.throughput for r in pairs] == pytest.approx([0, 50])
    assert len(list(Found(beside=found.beside[1:]).groups(("a", "b")))) == 0


def test_every_setting_has_one_turn() -> None:
    """The first and the last that run alone are AsyncOpenAI's, and one runs beside another."""
    every = turns(None)
    names = [setting.name for _, together in every for setting in together]
    assert len(set(names)) == len(names)
    assert set(names) >= {setting.name for setting in EVERY}
    alone = [together[0].name for lone, together in every if lone]
    assert (alone[0], alone[-1]) == (PLAIN, "AsyncOpenAI, again")
    assert len(alone) == len(ALONE) + 1
    pairs = [len(together) for lone, together in every if not lone]
    assert pairs == [2] * len(BESIDE)


def test_some_settings_come_with_their_own_plain() -> None:
    """Whichever were asked for."""
    some = [[s.name for s in together] for _, together in turns(["cost", "judge"])]
    assert some == [[PLAIN], ["cost"], ["AsyncOpenAI, again"], ["AsyncOpenAI, beside"], ["judge"]]
    assert [alone for alone, _ in turns(["judge"])] == [False, False]


def test_a_lossy_setting_is_held_to_the_article_where_it_agrees() -> None:
    """From 95 % on; below, nothing is claimed of it."""
    report = {"drafted": 8, "exactness": "heuristic"}
    found = outcome("ratio .3, K = 64, sure .5", 0.3, 25.0, 1.2, **report)
    made, plain = against(found)
    assert [verdict.held for verdict in verdicts(made, plain)] == [True, True, False]
    made, plain = against(found, ("a", "other"))
    assert made.identical == 0.5
    assert [verdict.held for verdict in verdicts(made, plain)] == [None]


def test_a_lossy_setting_that_used_no_draft_is_not_had() -> None:
    """Its answers are plain ones: neither a success nor a failure of the method."""
    report = {"exactness": "exact", "notes": ("the verdict is not JSON: 17",)}
    made, plain = against(outcome("judge", 2.0, 300.0, 2.0, **report))
    (verdict,) = verdicts(made, plain)
    assert verdict.held is None
    assert "2x the verdict is not JSON: N" in verdict.said


def test_a_request_that_fails_is_a_failure() -> None:
    """Whatever the figures of the others."""
    found = outcome("score K = 16", 0.1, 20.0, 0.5, drafted=8)
    found.answers[1] = replace(found.answers[1], report=None, error="RateLimitError: later")
    made, plain = against(found)
    lines, good = publish.criteria([plain, made])
    assert not good
    assert lines == [
        "FAIL  score K = 16: no request may fail, 1 did \N{EN DASH} RateLimitError: later"
    ]


def test_a_bill_is_what_a_server_was_asked_for() -> None:
    """At full, cached and output prices; what was cancelled in the queue is on none."""
    record = Record("1", 0.0, "/", "c", prompt_tokens=1000, cached_tokens=600)
    used = replace(record, charged_prompt_tokens=400, completion_tokens=10)
    bill = Bill.of([used, record], TARGET)
    assert bill.requests == 1
    assert bill.usd == pytest.approx((400 * 3 + 600 * 0.3 + 10 * 15) / 1e6)
    assert bill.input_usd == pytest.approx((400 * 3 + 600 * 0.3) / 1e6)
    assert Bill.of([used], DRAFT).usd < bill.usd


def test_c_is_what_the_pace_allows() -> None:
    """An answer's tokens in full steps, and its prompt."""
    pace = Pace.parse("tpot=40ms,prefill=1000,load=10ms")
    assert capacity(pace, 100, 50) == pytest.approx(1 / (0.1 + 0.5))


def test_moments_are_the_same_for_all_settings() -> None:
    """Seeded; each request has its own rate."""
    rates = [2.0] * 400 + [12.0] * 400
    moments = arrivals(rates)
    assert moments == arrivals(rates) == sorted(moments)
    assert moments[399] == pytest.approx(200, rel=0.15)
    assert moments[-1] - moments[399] == pytest.approx(400 / 12, rel=0.15)


@pytest.mark.parametrize("setting", EVERY[1:], ids=lambda setting: setting.name)
def test_every_setting_is_a_config(setting: object) -> None:
    """And its policy can be made."""
    made = parse(config("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", setting))  # type: ignore[arg-type]
    make_policy(made.models["smart"].policy)


def test_settings_are_found_by_name() -> None:
    """Those of the rise are among them."""
    assert [named(name).name for name in RISING] == list(RISING)
    with pytest.raises(ValueError, match="no setting 'fast'"):
        named("fast")


def test_the_table_has_a_line_a_setting_and_the_articles() -> None:
    """Plain's own changes are left empty."""
    made, plain = against(outcome("score K = 16", 0.5, 50.0, 1.0, drafted=8))
    lines = publish.table([plain, made]).splitlines()
    assert len(lines) == 5
    assert lines[2].endswith("|  |  |  |")
    assert "-50.0 % | +100.0 % | +0.0 %" in lines[3]
    assert "-65.5 % | +240.0 % | +12.0 %" in lines[4]
    assert len({line.count("|") for line in lines}) == 1

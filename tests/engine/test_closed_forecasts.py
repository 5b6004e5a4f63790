"""What lanes, predictions and rounds in flight are expected to take, and when they are left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specroute import speedup
from specroute.measure import Acceptance, Estimate, Measurements, Pace, Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecast_predict import LONGEST
from specroute.policy.forecasts import FORECASTS
from specroute.policy.objective import Objective
from specroute.policy.offer import Offer
from specroute.reference.running import ReferenceServer
from specroute.types import Method
from tests.engine.answers import ask
from tests.engine.test_predict import PROMPT, predicting, spec


def predicted(share: float, sent: float, tpot_s: float) -> dict[str, Any]:
    """What predictions came to."""
    return {"predicted": Estimate.exactly(share), "predicted_sent": sent,
            "predicted_tpot": Estimate.exactly(tpot_s)}  # fmt: skip


ASK = Ask(context=450)
LONG = Acceptance((200.0, *(196.0,) * 63), (204.0, *(198.0,) * 63))
SHORT = Acceptance((100.0, *(60.0,) * 63), (200.0, *(100.0,) * 63))


def figures(**more: Any) -> Snapshot:
    """A hosted model: 300 ms, 22 ms, $2.5 and $10 per million tokens, answers of 400 tokens."""
    base = Snapshot(Pace(0.3, 0.022, 400), usd_in=2.5e-6, usd_out=1e-5)
    return replace(base, **more)


def offer(method: Method, seen: Snapshot, usd_per_second: float = 0.05) -> Offer:
    found = FORECASTS[method](seen, ASK, Objective(usd_per_second=usd_per_second))
    assert found is not None
    return found


def test_lanes_are_as_many_as_a_saved_second_is_worth() -> None:
    """None for who pays nothing for time, more and closer ones for who pays more."""
    lanes = [offer(Method.PREFIX, figures(acceptance=LONG), usd) for usd in (1e-4, 0.01, 1.0)]
    counts = [each.lanes for each in lanes]
    assert counts[0] == lanes[0].k == 0
    assert counts == sorted(counts)
    assert 0 < counts[1] < counts[2]
    assert lanes[1].chunk > lanes[2].chunk
    seconds = [each.forecast.seconds for each in lanes]
    assert seconds == sorted(seconds, reverse=True)


def test_lanes_do_not_pay_where_the_draft_fails_before_the_first_of_them() -> None:
    """A TTFT of 14 tokens, runs of two."""
    assert offer(Method.PREFIX, figures(acceptance=SHORT), 1.0).k == 0


@pytest.mark.parametrize("method", [Method.PREFIX, Method.PREDICT])
def test_without_prices_nothing_is_bought(method: Method) -> None:
    """What can't be weighed is left alone; before the pace is known there is no forecast."""
    assert offer(method, figures(acceptance=LONG, usd_in=None, usd_out=None)).k == 0
    unknown = figures(pace=Pace())
    assert FORECASTS[method](unknown, ASK, Objective()) is None


def test_a_prediction_is_forecast_from_what_predictions_came_to() -> None:
    """A passage is sent whole unless most of it gets rejected, then no longer than an answer."""
    good = offer(Method.PREDICT, figures(**predicted(0.95, 400, 0.004)))
    assert good.k == LONGEST
    assert good.forecast.seconds == pytest.approx(0.3 + 399 * 0.004)
    assert good.forecast.dollars == pytest.approx(450 * 2.5e-6 + (400 + 20) * 1e-5)
    bad = offer(Method.PREDICT, figures(**predicted(0.05, 4000, 0.021)))
    assert bad.k == 400
    assert bad.forecast.dollars == pytest.approx(450 * 2.5e-6 + (400 + 380) * 1e-5)


def test_a_models_prediction_makes_the_call_wait_for_it() -> None:
    """As long as the answer is expected to be."""
    found = offer(Method.PREDICT, figures(draft_s=0.004, **predicted(0.9, 400, 0.004)))
    assert found.k == 400
    assert found.forecast.seconds == pytest.approx(0.3 + 400 * 0.004 + 399 * 0.004)


def test_predictions_are_measured_by_drafter() -> None:
    """The share taken, how much was sent, and the pace of answers with one."""
    measured = Measurements()
    measured.predicted("t", "d", "edit", drafted=100, accepted=90, tpot_s=0.002)
    measured.predicted("t", "d", "edit", drafted=100, accepted=0, tpot_s=0.02)
    seen = measured.snapshot("t", "d", "edit")
    assert seen.predicted is not None
    assert seen.predicted_tpot is not None
    assert 0.3 < seen.predicted.mean < 0.6
    assert seen.predicted_sent == pytest.approx(100)
    assert 0.002 < seen.predicted_tpot.mean < 0.02
    assert measured.snapshot("t", "other", "edit").predicted is None


def flown(alpha: float, r: float, usd_in: float | None = 0.0) -> tuple[float, Offer]:
    """(plain's seconds, the offer) at TPOT 40 ms, d = 4 ms and a fixed cost r of a request."""
    rate = Acceptance((400 * alpha,) * 64, (400.0,) * 64)
    seen = Snapshot(Pace(r + 0.04, 0.04, 300), rate, verify_s=r + 0.04, draft_s=0.004,
                    usd_in=usd_in, usd_out=usd_in and 4 * usd_in)  # fmt: skip
    found = FORECASTS[Method.SCORE](seen, ASK, Objective(usd_per_second=0.01))
    plain = FORECASTS[Method.PLAIN](seen, ASK, Objective())
    assert found is not None
    assert plain is not None
    return plain.forecast.seconds, found


@pytest.mark.parametrize("r", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("alpha", [0.8, 0.9, 0.95])
def test_rounds_in_flight_come_near_the_pipelined_bound(alpha: float, r: float) -> None:
    """TPOT / (d + (1-α)(R + TPOT)) with no correction drafted ahead; they never pass it."""
    plain, found = flown(alpha, r)
    assert found.depth > 1
    bound = speedup.pipelined_bound(alpha, speedup.Pace(tpot=0.04, r=r, d=0.004))
    assert 0.75 * bound < plain / found.forecast.seconds < 1.02 * bound


def test_rounds_in_flight_are_bought_only_where_they_pay() -> None:
    """Dear prompts: one at a time. Without prices it can't be told."""
    assert flown(0.9, 0.03, 1e-8)[1].depth > 1
    assert flown(0.9, 0.03, 1e-5)[1].depth == 0
    assert flown(0.9, 0.03, None)[1].depth == 0


async def test_the_policy_stops_predicting_where_most_is_rejected() -> None:
    """The prompt's passage looks like something to edit; the answer has nothing of it. The first
    predictions show it, and the next calls are plain."""
    policy = {"preset": "balanced", "usd_per_second": 0.01, "max_cost_ratio": 0}
    text = "four six " * 20
    with ReferenceServer(spec(text), pace="ttft=20ms,tpot=2ms") as server:
        async with predicting(server, policy) as client:
            methods = []
            for _ in range(9):
                got = await ask(client, prompt=PROMPT)
                assert got.text == text
                assert got.report is not None
                methods.append(got.report.method)
    assert "predict" in methods[:5]
    assert methods[-1] == "plain"
    assert methods.count("predict") < 4, methods

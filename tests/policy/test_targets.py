"""Interchangeable targets: the policy picks among them by what plain calls take."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.policy.objective import Forecast, Objective
from specroute.policy.targets import choose_target
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from specroute.types import TargetRef

SLOW, FAST = Forecast(4.0, 0.001), Forecast(1.0, 0.002)


@pytest.mark.parametrize(
    ("forecasts", "objective", "chosen"),
    [
        ((SLOW, FAST), Objective(1.0), 1),
        ((SLOW, FAST), Objective(1e-5), 0),
        ((SLOW, FAST), Objective(1.0, max_cost_ratio=1.5), 0),
        ((FAST, SLOW), Objective(1e-5), 1),
        ((FAST, SLOW), Objective(1e-5, max_latency_ratio=2.0), 0),
        ((None, FAST), Objective(1.0), 0),
        ((SLOW, None), Objective(1.0), 1),
        ((SLOW, Forecast(3.99, 0.001)), Objective(1.0), 0),
        ((SLOW, Forecast(1.0)), Objective(1e-5), 1),
    ],
)
def test_the_first_is_left_only_for_a_better_one(
    forecasts: tuple[Forecast | None, ...], objective: Objective, chosen: int
) -> None:
    """By J, within the limits; one that isn't known is asked once the first one is."""
    assert choose_target(forecasts, objective, random.Random(1), share=0.0) == chosen


def test_what_isnt_chosen_is_asked_again_now_and_then() -> None:
    """For its share of the requests: its pace may have changed."""
    rng = random.Random(4)
    asked = Counter(choose_target((SLOW, FAST), Objective(1.0), rng) for _ in range(4000))
    assert 2 <= asked[0] <= 25


@pytest.mark.parametrize("interchangeable", [True, False])
async def test_requests_go_to_the_faster_target(interchangeable: bool) -> None:
    """Only where the config says that they may; the label then says who answered."""
    script = Script({"name": "x", "answers": [{"when": "go", "text": "a b c d e f g h i j"}]})
    with (
        ReferenceServer(script, pace="ttft=60ms,tpot=8ms", names=["big"]) as far,
        ReferenceServer(script, pace="", names=["small"]) as near,
    ):
        config: dict[str, Any] = {
            "version": 1,
            "providers": {
                "far": {"profile": "reference", "base_url": far.base_url},
                "near": {"profile": "reference", "base_url": near.base_url},
            },
            "models": {
                "m": {
                    "targets": ["far:big", "near:small"],
                    "interchangeable": interchangeable,
                    "policy": {"preset": "latency", "plain_share": 0.0},
                }
            },
        }
        async with AsyncSpecRoute(config=config) as client:
            answered = []
            for _ in range(8):
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}], stream=True
                )
                async for _chunk in stream:
                    pass
                told = report(stream)
                assert told.complete
                assert told.target is not None
                answered.append(TargetRef.parse(told.target).model)
                assert (told.exactness == "heuristic") == (answered[-1] == "small")
    assert answered[0] == "big"
    assert answered[-4:] == ["small" if interchangeable else "big"] * 4

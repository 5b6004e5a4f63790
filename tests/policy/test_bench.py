"""What must hold of the presets, on a small part of the grid: ``make bench-policy`` has it all."""

from __future__ import annotations

from functools import partial

import pytest

from specroute.config import parse_policy
from specroute.policy.base import Policy
from specroute.policy.make import make_policy
from specroute.simulate.judge import Cell, judge, verdicts
from specroute.simulate.peers import FixedFive, Ucb
from specroute.simulate.scenario import Scenario

SCENARIOS = (
    Scenario(0.9, 0.03, 0.04, "heavy", seed=1, tokens=150),
    Scenario(0.8, 0.4, 0.04, drift="step", seed=2, tokens=150),
    Scenario(0.5, 0.1, 0.02, shadow=False, seed=3, tokens=150),
    Scenario(0.99, 0.03, 0.1, cached=0.02, out_in=8, seed=4, tokens=150),
)


def preset(name: str) -> Policy:
    return make_policy(parse_policy(name))[0]


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    presets = {name: partial(preset, name) for name in ("latency", "balanced", "cost")}
    return [judge(s, presets, {"K = 5": FixedFive, "UCB": Ucb}) for s in SCENARIOS]


def test_what_must_hold_holds(cells: list[Cell]) -> None:
    """Against plain, the best fixed plan, max_cost_ratio and the peers, trials included."""
    failed = [f"{v.said}: {v.figure}" for v in verdicts(cells, ["K = 5", "UCB"]) if not v.holds]
    assert not failed


def test_it_can_fail(cells: list[Cell]) -> None:
    """A policy that always speculates does not pass."""
    as_ours = [
        Cell(
            cell.scenario,
            cell.oracle,
            cell.oracle_seconds,
            cell.oracle_dollars,
            {**cell.scores, **dict.fromkeys(("latency", "cost"), cell.scores["K = 5"])},
        )
        for cell in cells
    ]
    assert sum(not verdict.holds for verdict in verdicts(as_ours, ["UCB"])) >= 4


def test_the_presets_want_different_things(cells: list[Cell]) -> None:
    """``latency`` is the quickest, ``cost`` the cheapest."""
    for cell in cells:
        latency, cost = cell.scores["latency"], cell.scores["cost"]
        assert latency.seconds <= cost.seconds * 1.01
        assert cost.dollars <= latency.dollars * 1.01

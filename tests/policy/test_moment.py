"""Requests that come together in a long turn of the loop aren't all weighed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from specroute import AsyncSpecRoute
from specroute.candidates import PLAIN, Candidates
from specroute.measure.turns import Turns
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, Forecast, Plan
from specroute.speculation import moment
from specroute.speculation.moment import LONG_S, Moment
from specroute.types import Method
from tests.support.copying import ask, config, repeating, words

KIND = ("t", "class")
ASK = Ask(100, 50)
OPTIONS = Candidates((PLAIN,))
WEIGHED = Plan(Method.PLAIN, None, 0, "it would lose", plain=Forecast(1.0))
TEXT = words(30)
CROWD = 40


def in_a_turn() -> tuple[Moment, Turns]:
    turns = Turns()
    turns.asks(0.0)
    return Moment(), turns


def test_what_was_decided_holds_for_those_who_come_later_in_the_same_turn() -> None:
    """Once the turn is long; in the next one each is weighed again."""
    seen, turns = in_a_turn()
    seen.decided(KIND, ASK, OPTIONS, turns, WEIGHED)
    assert seen.reason(KIND, ASK, OPTIONS, turns, 0.9 * LONG_S) is None
    assert seen.reason(KIND, ASK, OPTIONS, turns, LONG_S) == "it would lose"
    turns.came(LONG_S)
    turns.asks(LONG_S)
    assert seen.reason(KIND, ASK, OPTIONS, turns, 9 * LONG_S) is None


@pytest.mark.parametrize(
    ("kind", "other", "options"),
    [
        (("t", "another"), ASK, OPTIONS),
        (KIND, Ask(201, 50), OPTIONS),
        (KIND, Ask(49, 50), OPTIONS),
        (KIND, Ask(100, None), OPTIONS),
        (KIND, ASK, Candidates((PLAIN, replace(PLAIN, method=Method.SCORE, drafter="d")))),
    ],
)
def test_only_for_requests_of_the_same_kind(kind: Any, other: Ask, options: Candidates) -> None:
    """Class, length, limit and what is possible."""
    seen, turns = in_a_turn()
    seen.decided(KIND, ASK, OPTIONS, turns, WEIGHED)
    assert seen.reason(KIND, Ask(200, 50), OPTIONS, turns, 1.0) is not None
    assert seen.reason(kind, other, options, turns, 1.0) is None


@pytest.mark.parametrize(
    "plan",
    [
        replace(WEIGHED, yardstick=True),
        replace(WEIGHED, strays=0.1),
        replace(WEIGHED, plain=None),
        replace(WEIGHED, method=Method.SCORE, drafter="d", k=4),
    ],
    ids=["yardstick", "strays", "nothing known", "speculates"],
)
def test_what_says_nothing_of_others_is_taken_over_by_nobody(plan: Plan) -> None:
    """Nor what was decided before it: things have changed."""
    seen, turns = in_a_turn()
    seen.decided(KIND, ASK, OPTIONS, turns, WEIGHED)
    seen.decided(KIND, ASK, OPTIONS, turns, plan)
    assert seen.reason(KIND, ASK, OPTIONS, turns, 1.0) is None


async def weighed(monkeypatch: pytest.MonkeyPatch, long_s: float) -> tuple[int, list[str]]:
    """How many of a crowd are weighed, and the reasons that are given, where a turn is long after
    so many seconds."""
    monkeypatch.setattr(moment, "LONG_S", long_s)
    asked = 0

    def plan(self: Adaptive, ask: Ask, options: Any, figures: Any, rng: random.Random) -> Plan:
        nonlocal asked
        asked += 1
        return self.plain(ask, figures, "it would lose") or Plan(Method.PLAIN, None, 0, "")

    monkeypatch.setattr(Adaptive, "plan", plan)
    with repeating(TEXT, "tpot=1ms") as server:
        async with AsyncSpecRoute(config=config(server.base_url, "latency")) as client:
            for _ in range(3):
                await ask(client, TEXT)
            asked = 0
            told = await asyncio.gather(*(ask(client, TEXT) for _ in range(CROWD)))
    assert {report.method for report in told} == {"plain"}
    assert all(report.plain_s for report in told)
    return asked, [report.plan_reason for report in told]


async def test_a_crowd_is_weighed_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report says why, and has its own forecast."""
    asked, reasons = await weighed(monkeypatch, 0.0)
    assert asked < CROWD / 2
    assert sum(reason.startswith("as a request like it") for reason in reasons) == CROWD - asked
    assert all(reason.endswith("it would lose") for reason in reasons)


async def test_a_few_are_weighed_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as that doesn't take long."""
    asked, reasons = await weighed(monkeypatch, 1e9)
    assert (asked, set(reasons)) == (CROWD, {"it would lose"})

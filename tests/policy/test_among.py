"""What a policy does in a crowd before it weighs anything."""

from __future__ import annotations

import random

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Snapshot
from specroute.measure.crowd import Crowd
from specroute.measure.together import Room
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask
from specroute.policy.objective import Objective
from specroute.types import Exactness, Method
from tests.policy.test_choice import figures, rate

OPTIONS = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.EXACT)))


def known(**more: object) -> Snapshot:
    return figures(acceptance=rate(0.95, 1e4, 32), **more)


def test_what_is_seen_to_win_is_done() -> None:
    """The two below differ from this in one figure each."""
    plan = Adaptive(Objective(1.0)).plan(Ask(100), OPTIONS, lambda _: known(), random.Random(1))
    assert plan.method is Method.SCORE


def test_where_every_plan_is_full_none_is_weighed() -> None:
    """A thousand that come at once would wait for each other's forecasts."""
    asked = []

    def seen(candidate: Candidate) -> Snapshot:
        asked.append(candidate.method)
        return known()

    plan = Adaptive(Objective(1.0)).plan(
        Ask(100, room=lambda _: Room(others=40, proven=10)), OPTIONS, seen, random.Random(1)
    )
    assert plan.method is Method.PLAIN and set(asked) == {Method.PLAIN}
    assert "40 requests speculate so now, and no more than 10 at a time" in plan.reason
    assert plan.plain is not None


def test_a_client_whose_own_loop_is_late_goes_plain() -> None:
    """A round takes many of its turns, a stream hardly any."""
    late = known(crowd=Crowd(others=900, waits_s=30.0))
    plan = Adaptive(Objective(1.0)).plan(Ask(100), OPTIONS, lambda _: late, random.Random(1))
    assert plan.method is Method.PLAIN
    assert "would now take 30 s longer than it was timed at" in plan.reason

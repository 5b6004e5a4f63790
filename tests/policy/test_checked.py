"""A policy of one's own that raises or answers nonsense costs its request the speculation, no more."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask, RoundView
from specroute.policy.checked import MOST_K, checked_k, checked_plan, checked_target
from specroute.policy.fixed import Fixed
from specroute.policy.objective import Forecast
from specroute.reference.running import ReferenceServer
from specroute.speculation.speculator import Speculator
from specroute.types import Exactness, Method
from tests.engine.world import World
from tests.policy.strange import Strange

ABLE = Candidates(
    (PLAIN, Candidate(Method.SCORE, "table", Exactness.EXACT_GREEDY)),
    ((Method.RACE, "its answers would only be heuristic"),),
)
VIEW = RoundView(0, 0, None, Acceptance(), None, None)


@dataclass
class Settling(Strange):
    """Keeps an account, badly."""

    def target(self, forecasts: Any, rng: random.Random) -> Any:
        return {"raises": 1 / 0 if self.does == "raises" else 0, "far": 7, "second": 1}[self.does]


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("plan raises", r"plan\(\) raised ValueError: no plan"),
        ("plan is None", r"plan\(\) gave None, not a Plan"),
        ("another draft", "score with 'nobody' is none of the options"),
        ("another target", "score with 'table' at lab:other is none of the options"),
        ("another method", "race with 'table' is none of the options .its answers would only be"),
        ("no method", r"plan\(\) gave the method 'warp', not a Method"),
        ("plan of K = -4", r"plan\(\) gave k = -4, not a number of 0 or more"),
        ("plan of K = 2.5", r"plan\(\) gave k = 2.5"),
    ],
)
def test_what_is_no_plan_is_plain(does: str, said: str) -> None:
    """And the reason says what was wrong: a label looser than allowed can't come of it either."""
    plan = checked_plan(Strange(does), Ask(), ABLE, lambda _: Snapshot(), random.Random(1))
    assert plan.method is Method.PLAIN
    assert plan.k == 0
    assert plan.reason.startswith("the policy Strange: ")
    assert re.search(said, plan.reason)


def test_a_good_plan_is_the_policys_own() -> None:
    """Unchanged."""
    plan = checked_plan(Fixed(), Ask(), ABLE, lambda _: Snapshot(), random.Random(1))
    assert (plan.method, plan.drafter, plan.k) == (Method.SCORE, "table", 4)


@pytest.mark.parametrize(
    ("k", "used"),
    [(3, 3), (-3, 0), (10**9, MOST_K), (True, 1), (2.5, 0), (None, 0), (float("nan"), 0)],
)
def test_k_is_a_number_of_tokens(k: Any, used: int) -> None:
    """Whatever it isn't hands over to a plain stream, with a note."""
    found, wrong = checked_k(Strange(k=k), VIEW, Snapshot())
    assert found == used
    assert bool(wrong) == (not isinstance(k, int))


@pytest.mark.parametrize(("does", "place"), [("raises", 0), ("far", 0), ("second", 1)])
def test_the_preferred_target_is_asked_where_none_is_named(does: str, place: int) -> None:
    """A policy that chooses among targets can't lose a request either."""
    forecasts = [Forecast(1.0), Forecast(2.0)]
    assert checked_target(Settling(does), forecasts, random.Random(1)) == place


@pytest.mark.parametrize(
    "does", ["plan raises", "another draft", "K raises", "K raises later", "settle raises"]
)
async def test_its_requests_are_answered(tmp_path: Path, does: str) -> None:
    """With the same text as a plain call's, and what was wrong in the report."""
    world = World()
    with ReferenceServer(world.spec, seed=5) as server:
        file = tmp_path / "specroute.toml"
        file.write_text(
            "version = 1\n"
            f'[providers.lab]\nprofile = "reference"\nbase_url = "{server.base_url}"\n'
            'capabilities = { score = ["echo"] }\n[drafts.table]\nkind = "ngram"\n'
            '[models.m]\ntargets = ["lab:chain"]\ndrafts = ["table"]\n'
            f'policy = {{ preset = "tests.policy.strange:Strange", does = "{does}" }}\n'
            "[shadow]\nshare = 0.0\n"
        )
        async with AsyncSpecRoute(config=str(file)) as client:
            router = client.router
            router.speculation = Speculator(
                router.config, router.http, router.supervisor, drafters={"table": world.drafter()}
            )
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "a b"}]}
            body |= {"temperature": 0, "max_tokens": 20}
            said = await client.chat.completions.create(model="m", **body)
            plain = await client.chat.completions.create(model="lab:chain", **body)
    assert said.choices[0].message.content == plain.choices[0].message.content
    found = report(said)
    assert found.complete
    if does != "settle raises":
        told = " ".join((found.plan_reason or "", *found.notes))
        assert "the policy Strange: " in told

"""Where a speculative answer leaves the plain one: at the target's own near-tie, or not."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from specroute.comparison import NEAR_TIE, Run, excuse
from specroute.reference.running import ReferenceServer
from tests.live import agreement
from tests.live.agreement import Plain, Said
from tests.live.servers import Server

PROMPT = "go"


def tied(second: float) -> dict[str, Any]:
    """A target that says "one two", where "three" weighs ``second`` to two's 1."""
    return {
        "name": "smol",
        "vocabulary": ["one ", "two", "three", "</s>"],
        "eos": "</s>",
        "default": {"one ": 1},
        "rows": [
            {"after": ["one "], "next": {"two": 1, "three": second}},
            {"after": ["two"], "next": {"</s>": 1}},
            {"after": ["three"], "next": {"</s>": 1}},
        ],
    }


@pytest.mark.parametrize(
    ("second", "gap", "explained"), [(0.98, 0.0202, True), (0.5, 0.6931, False)]
)
async def test_a_difference_is_shown_with_the_targets_two_best_tokens(
    second: float, gap: float, explained: bool
) -> None:
    """The place, both continuations, both log-probabilities; a near-tie explains it, unless it was
    none."""
    with ReferenceServer(tied(second)) as running:
        server = Server("reference", "reference", running.base_url.removesuffix("/v1"), 0.0)
        said = Said(("one ", "two"), "stop", 0.1)
        plain = Plain(PROMPT, said, {"again": [said]})
        other = Said(("one ", "three"), "stop", 0.1)
        found = await agreement.difference(server, plain, other, 8)
        async with openai.AsyncOpenAI(base_url=running.base_url, api_key="none") as client:
            messages = [{"role": "user", "content": PROMPT}]
            a, b = (Run(text, "stop", 3, 0.1, 0.1) for text in ("one two", "one three"))
            why = await excuse(client, "smol", messages, 8, a, b)
    assert found.at == 5  # "one t" is common to both.
    assert found.gap == pytest.approx(gap, abs=1e-3)
    assert found.explained is explained
    assert (found.gap < NEAR_TIE) is explained
    assert str(found).startswith("'go' at character 5: plain 'wo', speculative 'hree'; 'two' -0.")
    assert "'three' -" in str(found)
    assert why == ("a near-tie: 0.0202 nats between the two best tokens" if explained else "")


async def test_a_target_that_differs_from_itself_explains_a_difference() -> None:
    """Without a near-tie, too; and where the server shows no log-probabilities."""
    with ReferenceServer(tied(0.5), ignore=["logprobs"]) as running:
        server = Server("reference", "reference", running.base_url.removesuffix("/v1"), 0.0)
        said, other = Said(("one ", "two"), "stop", 0.1), Said(("one ", "three"), "stop", 0.1)
        unsteady = Plain(PROMPT, said, {"again": [other]})
        found = await agreement.difference(server, unsteady, other, 8)
        steady = Plain(PROMPT, said, {"again": [said]})
        unexplained = await agreement.difference(server, steady, other, 8)
    assert (found.gap, found.explained) == (None, True)
    assert "plain differs from itself on this prompt, too" in str(found)
    assert (unexplained.gap, unexplained.explained) == (None, False)

"""Draws that a rule asks for in the middle of judging, from servers that give none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from specroute import report
from specroute.reference.running import ReferenceServer
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy

TAIL = {"score": ["echo"], "echo_max_logprobs": 3}


def drawing(path: str, body: Mapping[str, Any]) -> bool:
    return "logit_bias" in body or body.get("n", 1) > 1


def _always_the_same(data: Any) -> None:
    """An improbable token, over and over."""
    for choice in data["choices"]:
        choice["logprobs"] |= {"tokens": ["token_id:0"], "token_logprobs": [-9.0]}


def _nameless(data: Any) -> None:
    for choice in data["choices"]:
        choice["logprobs"]["tokens"] = ["a"]


@pytest.mark.parametrize(
    ("fault", "caps", "said"),
    [
        (Fault("status", status=400), TAIL, "400"),
        (Fault("edit", value=_nameless), TAIL, "without its id"),
        (Fault("edit", value=_always_the_same), TAIL | {"logit_bias": False}, "own account"),
    ],
    ids=["refused", "nameless", "always the same"],
)
async def test_a_server_that_gives_no_draws_is_asked_no_more(
    fault: Fault, caps: dict[str, Any], said: str
) -> None:
    """One answer may have been left with an unfinished rejection, which its label says. From then on
    answers are exact again, and nobody waits for a draw."""
    world = World()
    labels: Counter[str] = Counter()
    with ReferenceServer(world.spec, seed=3) as server:
        fault_on = lambda path, body, n: fault if drawing(path, body) else None  # noqa: E731
        async with (
            Proxy(server.base_url, fault_on) as proxy,
            speculating(
                world, server, k=3, drafter=world.drafter("bad"),
                provider={"capabilities": caps, "base_url": proxy.base_url},
            ) as client,
        ):  # fmt: skip
            await client.warm_up()
            for seed in range(12):
                answer = await client.completions.create(
                    model="m", prompt=list(world.vocabulary.encode("a")), max_tokens=16,
                    temperature=1.0, extra_body={"specroute": {"seed": seed}},
                )  # fmt: skip
                shown = report(answer)
                assert shown is not None
                labels[shown.exactness] += 1
            (target,) = client.router.speculation.pool.targets.values()
            assert said in target.learned.no_draws
            asked = proxy.count(drawing)
            assert (shown.method, shown.exactness) == ("plain", "exact")
            assert "draws are not trusted" in shown.plan_reason
            assert proxy.count(drawing) == asked
    assert labels["heuristic"] == 1

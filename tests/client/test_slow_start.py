"""A crowd that comes at once out of nothing goes plain; one that keeps coming speculates soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from specroute import AsyncSpecRoute, report
from specroute.policy.crowd import A_FEW
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from specroute.types import Report

TEXT = " ".join(f"w{i}" for i in range(16))
CROWD = 24
TURNS = 12


async def ask(client: AsyncSpecRoute) -> Report:
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": f"copy {TEXT}"}],
        temperature=0,
        max_tokens=60,
        stream=True,
    )
    async for _chunk in stream:
        pass
    return report(stream)


async def at_once(client: AsyncSpecRoute) -> list[Report]:
    return await asyncio.gather(*(ask(client) for _ in range(CROWD)))


def by_method(crowd: list[Report]) -> Counter[str]:
    return Counter(each.method for each in crowd if each.method != "plain")


async def test_a_cold_crowd_goes_plain_and_one_that_stays_speculates_within_a_few_answers() -> None:
    """Look-ups that are right at a server with room for everybody: that one request wins by them is
    known, and says nothing of 24. Each crowd that wins lets twice as many do so."""
    script = Script({"name": "x", "answers": [{"when": "copy", "text": TEXT}]})
    policy = {"preset": "latency", "exploration": 0.25}  # So that the first ones may try.
    with ReferenceServer(script, pace="tpot=60ms", names=["x"]) as server:
        config: dict[str, Any] = {
            "version": 1,
            "shadow": {"share": 0},
            "providers": {"lab": {"profile": "reference", "base_url": server.base_url}},
            "models": {"m": {"targets": ["lab:x"], "drafts": ["ngram"], "policy": policy}},
        }
        async with AsyncSpecRoute(config=config) as client:
            alone = await ask(client)
            while alone.method == "plain" or "is tried" in alone.plan_reason:
                alone = await ask(client)
            cold = await at_once(client)
            assert max(by_method(cold).values(), default=0) <= A_FEW
            turns = [cold]
            while max(by_method(turns[-1]).values(), default=0) < CROWD / 2 and len(turns) < TURNS:
                turns.append(await at_once(client))
            assert max(by_method(turns[-1]).values()) >= CROWD / 2, list(map(by_method, turns))

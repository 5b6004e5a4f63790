"""A crowd that comes at once out of nothing goes plain; one that keeps coming speculates soon."""

from __future__ import annotations

import asyncio
from collections import Counter

from specroute import AsyncSpecRoute
from specroute.policy.crowd import A_FEW
from specroute.types import Report
from tests.support.copying import ask, config, repeating, words

TEXT = words(16)
CROWD = 24
TURNS = 12


async def at_once(client: AsyncSpecRoute) -> list[Report]:
    return await asyncio.gather(*(ask(client, TEXT) for _ in range(CROWD)))


def by_method(crowd: list[Report]) -> Counter[str]:
    return Counter(each.method for each in crowd if each.method != "plain")


async def test_a_cold_crowd_goes_plain_and_one_that_stays_speculates_within_a_few_answers() -> None:
    """Look-ups that are right at a server with room for everybody: that one request wins by them is
    known, and says nothing of 24. Each crowd that wins lets twice as many do so."""
    policy = {"preset": "latency", "exploration": 0.25}  # So that the first ones may try.
    with repeating(TEXT, "tpot=60ms") as server:
        async with AsyncSpecRoute(config=config(server.base_url, policy)) as client:
            alone = await ask(client, TEXT)
            while alone.method == "plain" or "is tried" in alone.plan_reason:
                alone = await ask(client, TEXT)
            cold = await at_once(client)
            assert max(by_method(cold).values(), default=0) <= A_FEW
            turns = [cold]
            while max(by_method(turns[-1]).values(), default=0) < CROWD / 2 and len(turns) < TURNS:
                turns.append(await at_once(client))
            assert max(by_method(turns[-1]).values()) >= CROWD / 2, list(map(by_method, turns))

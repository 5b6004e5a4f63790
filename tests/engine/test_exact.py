"""Sampled answers through the client are distributed as the target's own, whatever the draft."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from specroute import report
from specroute.reference.running import ReferenceServer
from tests.engine.world import World, speculating
from tests.support.distribution import total_variation

N, LENGTH = 400, 6
"""Answers a case, and tokens an answer: every token is a draw from its predecessor's row."""
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("score", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("score", "bad", {"temperature": 1.0, "top_k": 6}),
    ("score", "peaked", {"temperature": 1.3, "top_k": 10, "top_p": 0.8}),
    ("prefix", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("prefix", "bad", {"temperature": 1.0}),
    ("prefix", "peaked", {"temperature": 1.3}),
]


async def _sample(
    world: World, method: str, settings: dict[str, Any], draft: str
) -> tuple[dict[int, Counter[int]], Counter[str]]:
    """(what followed each token, the methods used)."""
    start = world.vocabulary.encode("a")
    body = dict(settings)
    extra = {"top_k": body.pop("top_k")} if "top_k" in body else {}
    then: dict[int, Counter[int]] = defaultdict(Counter)
    methods: Counter[str] = Counter()
    with ReferenceServer(world.spec, seed=5) as server:
        async with speculating(
            world, server, method=method, k=3, drafter=world.drafter(draft)
        ) as client:

            async def one(seed: int) -> None:
                answer = await client.completions.create(
                    model="m",
                    prompt=list(start),
                    max_tokens=LENGTH,
                    extra_body={**extra, "specroute": {"seed": seed}},
                    **body,
                )
                ids = world.vocabulary.encode(answer.choices[0].text)
                ids = (*ids, world.eos) if answer.choices[0].finish_reason == "stop" else ids
                for last, token in pairwise((*start, *ids)):
                    then[last][token] += 1
                methods[report(answer).method] += 1

            await client.warm_up()
            for batch in range(0, N, 16):
                await asyncio.gather(*map(one, range(batch, batch + 16)))
    return then, methods


@pytest.mark.parametrize(("method", "draft", "settings"), CASES, ids=str)
async def test_output_frequencies_are_the_targets(
    method: str, draft: str, settings: dict[str, Any]
) -> None:
    """Each token given the one before it: the distance from the target's rows, over all pairs
    together, stays below the 99.9 % quantile of plain sampling's own."""
    world = World()
    then, methods = await _sample(world, method, settings, draft)
    assert methods == {method: N}
    total = sum(sum(row.values()) for row in then.values())
    assert total > N * LENGTH / 3
    distance, quantiles = 0.0, []
    rng = np.random.default_rng(0)
    for last, row in then.items():
        p, n = world.shaped(last, **settings), sum(row.values())
        assert set(row) <= set(p)
        distance += n * total_variation(row, p)
        keys = np.array([*p.values()]) / sum(p.values())
        draws = rng.multinomial(n, keys, size=4000)
        quantiles.append(n * 0.5 * np.abs(draws / n - keys).sum(1))
    assert distance < np.quantile(sum(quantiles), 0.999)

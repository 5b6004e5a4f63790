"""Sampled answers through the client are distributed as the target's own, whatever the draft."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from specroute import report
from specroute.reference.running import ReferenceServer
from tests.engine.world import World, speculating
from tests.support.distribution import pairs, total_variation, tv_quantile

N = 800
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("score", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("score", "bad", {"temperature": 1.0, "top_k": 6}),
    ("score", "peaked", {"temperature": 1.3, "top_k": 10, "top_p": 0.8}),
    ("prefix", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("prefix", "bad", {"temperature": 1.0}),
    ("prefix", "peaked", {"temperature": 1.3}),
]


async def _sample(
    world: World, method: str, settings: dict[str, Any], draft: str, n: int
) -> tuple[Counter[int], Counter[tuple[int, int]], Counter[str]]:
    start = world.vocabulary.encode("a")
    body = dict(settings)
    extra = {"top_k": body.pop("top_k")} if "top_k" in body else {}
    first: Counter[int] = Counter()
    both: Counter[tuple[int, int]] = Counter()
    methods: Counter[str] = Counter()
    with ReferenceServer(world.spec, seed=5) as server:
        async with speculating(
            world, server, method=method, k=3, drafter=world.drafter(draft)
        ) as client:

            async def one(seed: int) -> None:
                answer = await client.completions.create(
                    model="m",
                    prompt=list(start),
                    max_tokens=4,
                    extra_body={**extra, "specroute": {"seed": seed}},
                    **body,
                )
                ids = world.vocabulary.encode(answer.choices[0].text)
                ids = (*ids, world.eos) if answer.choices[0].finish_reason == "stop" else ids
                first[ids[0]] += 1
                if ids[0] != world.eos:
                    both[ids[0], ids[1]] += 1
                methods[report(answer).method] += 1

            await one(0)  # calibrates
            for batch in range(1, n, 50):
                await asyncio.gather(*(one(seed) for seed in range(batch, min(batch + 50, n))))
    return first, both, methods


@pytest.mark.parametrize(("method", "draft", "settings"), CASES, ids=str)
async def test_output_frequencies_are_the_targets(
    method: str, draft: str, settings: dict[str, Any]
) -> None:
    """Tokens and pairs of tokens stay below the 99.9 % quantile of plain sampling's own distance."""
    world = World()
    n = N
    first, both, methods = await _sample(world, method, settings, draft, n)
    assert methods == {method: n}
    p = world.shaped(world.vocabulary.encode("a")[0], **settings)
    assert total_variation(first, p) < tv_quantile(p, n)
    then = {t: world.shaped(t, **settings) for t in p if t != world.eos}
    joint = pairs({t: v for t, v in p.items() if t != world.eos}, then)
    mass = sum(joint.values())
    joint = {key: v / mass for key, v in joint.items()}
    assert total_variation(both, joint) < tv_quantile(joint, sum(both.values()), reps=1000)

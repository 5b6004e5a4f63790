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
from tests.engine.world import World, chain, speculating
from tests.support.distribution import total_variation

N, LENGTH = 400, 6
"""Answers a case, and tokens an answer: every token is a draw from its predecessor's row."""
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("score", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("score", "bad", {"temperature": 1.0, "top_k": 6}),
    ("score", "peaked", {"temperature": 1.3, "top_k": 10, "top_p": 0.8}),
    ("score in flight", "peaked", {"temperature": 1.0, "top_k": 6}),
    ("score in flight, drawn", "peaked", {"temperature": 1.3}),
    ("cascade", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("cascade", "bad", {"temperature": 1.0}),
    ("prefix", "good", {"temperature": 0.7, "top_p": 0.9}),
    ("prefix", "bad", {"temperature": 1.0}),
    ("prefix", "peaked", {"temperature": 1.3}),
    ("prefix by text", "peaked", {"temperature": 0.5}),
]
CLOSED: dict[str, Any] = {"id_prompts": False, "completions": False, "score": [],
                          "chat_max_logprobs": 0, "template": "apply-template"}  # fmt: skip


def spaced() -> World:
    """Every token begins with a space, so that a lane may start behind each of them."""
    spec, letters = chain(), " abcdefg"
    words = {w: f" {w}" for w in letters[1:]}

    def row(weights: dict[str, float]) -> dict[str, float]:
        kept = {words[w]: p for w, p in weights.items() if w in words}
        return {**kept, "</s>": 0.1 * min(kept.values())}

    rows = [{"after": [words[r["after"][0]]], "next": row(r["next"])}
            for r in spec["rows"] if r["after"][0] in words]  # fmt: skip
    return World({**spec, "vocabulary": [*words.values(), "</s>"], "default": row(spec["default"]),
                  "rows": rows})  # fmt: skip


async def _sample(
    world: World, method: str, settings: dict[str, Any], draft: str
) -> tuple[dict[int, Counter[int]], Counter[str]]:
    """(what followed each token, the methods used)."""
    by_text, drawn = method == "prefix by text", method.endswith("drawn")
    depth = 3 if "in flight" in method else 1
    method, options, provider = method.partition(" ")[0], {}, {}
    start = world.vocabulary.encode("<|assistant|>" if by_text else "a")
    if method == "prefix":  # At a pace at which lanes are there in time.
        options = {"pace": "tpot=4ms"}
    if by_text:  # A chat API without ids, logprobs or template, at a pace at which lanes are ready.
        options = {"disable": ["completions", "logprobs", "tokenize", "apply_template"],
                   "pace": "tpot=10ms"}  # fmt: skip
        provider = {"capabilities": CLOSED}
    if drawn:  # The target's own draws decide, one request a drafted token.
        provider = {"capabilities": {"score": ["fanout"]}}
    n, length = (N // 2, 2 * LENGTH) if by_text else (N, LENGTH)
    n = N // 3 if depth > 1 else n
    body = dict(settings)
    extra = {"top_k": body.pop("top_k")} if "top_k" in body else {}
    then: dict[int, Counter[int]] = defaultdict(Counter)
    methods: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    with ReferenceServer(world.spec, seed=5, **options) as server:
        async with speculating(
            world,
            server,
            policy={
                "preset": "fixed",
                "method": method,
                "num_speculative_tokens": 1 if by_text or depth > 1 else 3,
                "rounds_in_flight": depth,
            },
            drafter=world.drafter(draft, text_only=by_text),
            provider=provider,
        ) as client:

            async def one(seed: int) -> None:
                asked: dict[str, Any] = {
                    "model": "m",
                    "max_tokens": length,
                    "extra_body": {**extra, "specroute": {"seed": seed}},
                    **body,
                }
                if by_text:
                    messages = [{"role": "user", "content": "a"}]
                    answer: Any = await client.chat.completions.create(messages=messages, **asked)
                    text = answer.choices[0].message.content
                    labels[report(answer).exactness] += 1
                else:
                    answer = await client.completions.create(prompt=list(start), **asked)
                    text = answer.choices[0].text
                ids = world.vocabulary.encode(text)
                ids = (*ids, world.eos) if answer.choices[0].finish_reason == "stop" else ids
                for last, token in pairwise((*start, *ids)):
                    then[last][token] += 1
                methods[report(answer).method] += 1

            await client.warm_up()
            for batch in range(0, n, 16):
                await asyncio.gather(*map(one, range(batch, min(batch + 16, n))))
    # Lanes took over in a good part of the answers; by text the label says so.
    assert not by_text or labels["bounded"] > n / 10, labels
    return then, methods


@pytest.mark.parametrize(("method", "draft", "settings"), CASES, ids=str)
async def test_output_frequencies_are_the_targets(
    method: str, draft: str, settings: dict[str, Any]
) -> None:
    """Each token given the one before it: the distance from the target's rows, over all pairs
    together, stays below the 99.9 % quantile of plain sampling's own."""
    world = spaced() if method == "prefix by text" else World()
    then, methods = await _sample(world, method, settings, draft)
    assert set(methods) == {method.partition(" ")[0]}
    total = sum(sum(row.values()) for row in then.values())
    assert total > N * LENGTH / 5
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

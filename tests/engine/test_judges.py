"""Each dialect and each judge, through the client: what is used, what it is labelled, what it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from specroute import ConfigError, report
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_faults import through
from tests.engine.world import World, speculating
from tests.support.distribution import total_variation, tv_quantile
from tests.support.proxy import Fault

START = "a"


async def _one(client: Any, world: World, seed: int = 0, **body: Any) -> tuple[Any, Any]:
    top_k = body.pop("top_k", None)
    extra: dict[str, Any] = {"specroute": {"seed": seed}}
    if top_k is not None:
        extra["top_k"] = top_k
    answer = await client.completions.create(
        model="m", prompt=list(world.vocabulary.encode(START)), extra_body=extra, **body
    )
    return answer, report(answer)


@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs", "generate", "fanout"])
async def test_every_dialect_gives_the_plain_greedy_answer(dialect: str) -> None:
    """By ids, over several rounds, with accepted and rejected drafts, billed to the token."""
    world = World()
    with ReferenceServer(world.spec) as server:
        provider = {"capabilities": {"score": [dialect]}}
        async with speculating(
            world, server, k=3, drafter=world.drafter("bad"), provider=provider
        ) as client:
            await client.warm_up()
            before = len(server.log)
            answer, shown = await _one(client, world, temperature=0, max_tokens=24)
            records = server.log[before:]
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            same, _ = await _one(plain, world, temperature=0, max_tokens=24)
    assert answer.choices[0].text == same.choices[0].text
    assert answer.choices[0].finish_reason == same.choices[0].finish_reason
    assert (shown.method, shown.exactness) == ("score", "exact-greedy")
    assert shown.rejected
    assert shown.billed_prompt_tokens == sum(r.prompt_tokens for r in records)
    assert shown.billed_completion_tokens == sum(r.completion_tokens for r in records)


@pytest.mark.parametrize(
    ("server", "used"),
    [
        ({}, "echo"),
        ({"ignore": ["echo"]}, "prompt_logprobs"),
        ({"disable": ["echo", "prompt_logprobs"]}, "generate"),
        ({"quirks": ["echo_shifted"], "disable": ["prompt_logprobs", "generate"]}, None),
    ],
    ids=str,
)
async def test_a_dialect_that_lies_is_routed_round(
    server: dict[str, Any], used: str | None
) -> None:
    """The next one of the profile is used, and the caller sees the plain answer either way."""
    world = World()
    with ReferenceServer(world.spec, **server) as running:
        async with speculating(world, running, provider={"capabilities": {}}) as client:
            _, shown = await _one(client, world, temperature=0, max_tokens=12)
            assert (shown.method, shown.exactness) == ("score", "exact-greedy")
            speculator: Any = client.router.speculation
            (target,) = speculator.pool.targets.values()
            dialect = target.learned.dialect
            assert (dialect[0].name if dialect else None) == used
            assert target.learned.sampler[0].name == "fanout"


CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    # capabilities, sampling, who judges, draft
    ("tail at T = 1", {"echo_max_logprobs": 3}, {"temperature": 1.0}, "rules", "good"),
    ("tail at T = .7", {"echo_max_logprobs": 3}, {"temperature": 0.7}, "rules", "bad"),
    (
        "no logit_bias",
        {"echo_max_logprobs": 3, "logit_bias": False},
        {"temperature": 1.0},
        "rules",
        "peaked",
    ),
    ("T > 1 with a tail", {"echo_max_logprobs": 3}, {"temperature": 1.3}, "draws", "good"),
    ("unset temperature", {}, {}, "draws", "peaked"),
    ("unknown defaults", {"sampling_defaults": "model"}, {"temperature": 0.7}, "draws", "bad"),
]


@pytest.mark.parametrize(
    ("name", "caps", "sampling", "judge", "draft"), CASES, ids=lambda v: str(v)
)
async def test_hidden_tails_stay_exact(
    name: str, caps: dict[str, Any], sampling: dict[str, Any], judge: str, draft: str
) -> None:
    """Counts of each token given the one before it stay below the 99.9 % quantile of plain
    sampling's own distance, where the server shows three log-probabilities, or nothing is known."""
    world = World()
    given: dict[int, Counter[int]] = {}
    (start,) = world.vocabulary.encode(START)
    with ReferenceServer(world.spec, seed=9) as server:
        provider = {"capabilities": {"score": ["echo", "fanout"], **caps}}
        async with speculating(
            world, server, k=3, drafter=world.drafter(draft), provider=provider
        ) as client:
            await client.warm_up()

            async def one(seed: int) -> None:
                answer, shown = await _one(client, world, seed, max_tokens=24, **sampling)
                assert (shown.method, shown.exactness) == ("score", "exact")
                last = start
                ids = list(world.vocabulary.encode(answer.choices[0].text))
                if answer.choices[0].finish_reason == "stop":
                    ids.append(world.eos)
                for token in ids:
                    given.setdefault(last, Counter())[token] += 1
                    last = token

            for batch in range(0, 48, 16):
                await asyncio.gather(*map(one, range(batch, batch + 16)))
    temperature = sampling.get("temperature", 1.0)
    checked = 0
    for last, counts in given.items():
        n = sum(counts.values())
        if n >= 40:
            p = world.shaped(last, temperature=temperature)
            assert total_variation(counts, p) < tv_quantile(p, n, q=0.9999, reps=20000)
            checked += 1
    assert checked >= 3


async def test_lossy_rules_need_their_label() -> None:
    """``ratio`` runs only where ``heuristic`` is allowed, and says so; otherwise it is an error."""
    world = World()
    lossy = {
        "preset": "fixed", "method": "score", "num_speculative_tokens": 3, "acceptance": "ratio",
        "tau": 0.1,
    }  # fmt: skip
    with ReferenceServer(world.spec) as server:
        policy = {**lossy, "exactness": "heuristic"}
        async with speculating(world, server, policy=policy) as client:
            _, shown = await _one(client, world, temperature=1.0, top_k=8, max_tokens=12)
            assert (shown.method, shown.exactness) == ("score", "heuristic")
            assert "ratio(0.1)" in (shown.exactness_reason or "")
        with pytest.raises(ConfigError, match="exactness = 'heuristic'"):
            async with speculating(world, server, policy=lossy):
                pass


@pytest.mark.parametrize(("temperature", "label"), [(0, "exact-greedy"), (0.8, "heuristic")])
async def test_a_draw_that_is_not_shown_costs_its_place_and_not_the_dialect(
    temperature: float, label: str
) -> None:
    """As llama.cpp hides a token inside a character: what stands before it is kept, the target goes
    on by itself, and the next request is scored again. Above T = 0 the label says that a draw was
    made twice."""
    hidden = script()["vocabulary"].index("six")

    def hide(data: Any) -> None:
        for choice in data["choices"]:
            shown = choice.get("logprobs") or {}
            if shown.get("tokens") == [f"token_id:{hidden}"]:
                choice |= {"text": "\ufffd", "logprobs": None}

    def judge(path: str, body: Any, n: int) -> Fault | None:
        many = isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], list)
        return Fault("edit", value=hide) if many else None

    drafter = EchoDrafter(script())
    with ReferenceServer(script()) as server:
        fanout = {"score": ["fanout"]}
        async with through(server, judge, drafter=drafter, capabilities=fanout) as (client, _):
            for _ in range(2):
                got = await ask(client, temperature=temperature)
                assert got.text == TEXT
                assert got.report is not None
                assert (got.report.method, got.report.exactness) == ("score", label)
                assert got.report.accepted >= 8
                assert got.report.notes == ("a token without readable text",)
            (target,) = client.router.speculation.pool.targets.values()
            assert target.learned.sampler is not None

"""Where a prompt lookup has nothing to propose, the target's own stream runs until it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from specroute import report
from specroute.draft.ngram import NgramDrafter
from specroute.reference.running import ReferenceServer
from tests.engine.answers import ask, script
from tests.engine.world import World, speculating
from tests.support.distribution import total_variation, tv_quantile

PASSAGE = "one, two, three, four; The quick brown fox jumps over the lazy dog and rests"
NEW = "six. six; six, two; four. one. "
"""No two tokens of it follow each other in the passage."""


def lookup(world: World) -> Any:
    """Prompt lookup over the ids of a server whose vocabulary is known."""
    drafter = NgramDrafter("table")
    drafter.vocabulary = world.vocabulary
    return drafter


@pytest.mark.parametrize("chat", [True, False])
async def test_speculation_begins_where_a_match_appears(chat: bool) -> None:
    """The answer starts with something new: streamed. What it then repeats comes in rounds. Every
    call is in the report, the ended stream as well."""
    world = World(script(NEW + PASSAGE))
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, drafter=lookup(world)) as client:
            await client.warm_up()
            before = len(server.log)
            got = await ask(client, prompt=PASSAGE, chat=chat, max_tokens=64)
            records = [r for r in server.log[before:] if "completions" in r.path]
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            assert (
                got.content == (await ask(plain, prompt=PASSAGE, chat=chat, max_tokens=64)).content
            )
    shown = got.report
    assert shown is not None
    assert (shown.method, shown.exactness) == ("score", "exact-greedy")
    assert shown.accepted >= 10
    assert records[0].stream
    assert [r.stream for r in records[1:]] == [False] * (len(records) - 1)
    assert shown.notes == ()
    calls = [a for a in shown.attempts if a.purpose != "render"]
    assert [a.purpose for a in calls] == ["plain", *["score"] * (len(records) - 1)]
    assert calls[0].estimated
    assert calls[0].usage.completion_tokens == records[0].completion_tokens or calls[0].estimated


async def test_what_never_matches_is_one_plain_stream() -> None:
    """One call, the tokens of a plain answer, and no round."""
    world = World(script(NEW))
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, drafter=lookup(world)) as client:
            await client.warm_up()
            before = len(server.log)
            got = await ask(client, prompt=PASSAGE)
            records = [r for r in server.log[before:] if "completions" in r.path]
    assert got.text == NEW
    assert got.finish == "stop"
    assert len(records) == 1
    assert got.report is not None
    assert got.report.rounds == 0
    assert got.usage == (records[0].prompt_tokens, records[0].completion_tokens)


async def test_rounds_that_did_not_pay_for_a_stream_are_the_last() -> None:
    """Matches that break off at once: after the first of them the rest is one stream."""
    lure = "one, two, three"
    text = f"{lure}; six. ".join(["six; ", "four. ", "six, ", "four; ", "six. "])
    world = World(script(text))
    prompt = f"{lure}, four; {lure}. The quick brown fox"
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, drafter=lookup(world)) as client:
            await client.warm_up()
            before = len(server.log)
            got = await ask(client, prompt=prompt)
            streams = [r for r in server.log[before:] if r.stream]
    assert got.text == text
    assert got.report is not None
    assert len(streams) <= 3


async def test_text_alone_will_do() -> None:
    """Without ids the stream is compared as text; the label is that of text."""
    world = World(script(NEW + PASSAGE))
    caps = {"id_prompts": False, "template": "apply-template", "score": ["echo"]}
    with ReferenceServer(world.spec, disable=["id_prompts", "tokenize"]) as server:
        async with speculating(
            world,
            server,
            drafter=NgramDrafter("table"),
            provider={"capabilities": caps},  # type: ignore[arg-type]
        ) as client:
            await client.warm_up()
            got = await ask(client, prompt=PASSAGE)
    assert got.text == NEW + PASSAGE
    assert got.report is not None
    assert (got.report.method, got.report.exactness) == ("score", "bounded")
    assert got.report.accepted


async def test_sampled_answers_stay_exact() -> None:
    """Counts of each token given the one before it, over answers that go to and fro between stream
    and rounds, stay below the 99.99 % quantile of plain sampling's own distance."""
    world = World()
    given: dict[int, Counter[int]] = {}
    start = "abcabcabdabeacaf"
    rounds = 0
    with ReferenceServer(world.spec, seed=5) as server:
        async with speculating(world, server, k=3, drafter=lookup(world)) as client:
            await client.warm_up()

            async def one(seed: int) -> None:
                nonlocal rounds
                answer = await client.completions.create(
                    model="m", prompt=list(world.vocabulary.encode(start)), max_tokens=40,
                    temperature=1.0, extra_body={"specroute": {"seed": seed}, "top_k": 0},
                )  # fmt: skip
                shown = report(answer)
                assert shown is not None
                rounds += shown.rounds
                last = world.vocabulary.encode(start)[-1]
                ids = list(world.vocabulary.encode(answer.choices[0].text))
                if answer.choices[0].finish_reason == "stop":
                    ids.append(world.eos)
                for token in ids:
                    given.setdefault(last, Counter())[token] += 1
                    last = token

            for batch in range(0, 160, 16):
                await asyncio.gather(*map(one, range(batch, batch + 16)))
    assert rounds > 50
    checked = 0
    for last, counts in given.items():
        n = sum(counts.values())
        if n >= 60:
            p = world.p(last)
            assert total_variation(counts, p) < tv_quantile(p, n, q=0.9999, reps=20000)
            checked += 1
    assert checked >= 5

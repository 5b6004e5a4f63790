"""Two hundred requests at once: all are answered right, and nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from specroute.types import Method

pytestmark = pytest.mark.alone

CROWD = 200
RNG = random.Random(3)
WORDS = ("apples", "bread", "cheese", "dates", "eggs", "figs", "grapes", "honey", "ink", "jam")
ANSWERS = [
    " ".join([f"list-{n:03d}", *RNG.choices(WORDS, k=3), "and", *RNG.choices(WORDS, k=2)])
    for n in range(CROWD)
]
"""Equal in length, different in text."""
SCRIPT = {
    "name": "script",
    "vocabulary": [
        *(f"list-{n:03d}" for n in range(CROWD)),
        *(f" {word}" for word in (*WORDS, "and")),
        *WORDS,
    ],
    "answers": [{"when": text[:8], "text": text} for text in ANSWERS],
}
PACE = "tpot=2ms"


def config(url: str, policy: Any, drafts: list[str]) -> dict[str, Any]:
    limits = {"connect": 60, "first_token": 60, "stall": 60, "total": 120}
    return {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": url,
                "probe": False,
                "timeouts": limits,
                "prices": {"input": 1.0, "output": 2.0},
            }
        },
        "models": {"m": {"targets": ["lab:script"], "drafts": drafts, "policy": policy}},
    }


FIXED = {"preset": "fixed", "method": "score", "num_speculative_tokens": 6}
LANES = {"preset": "fixed", "method": "prefix", "num_speculative_tokens": 6}


@asynccontextmanager
async def asked_by(
    policy: Any, *drafts: str
) -> AsyncIterator[tuple[AsyncSpecRoute, ReferenceServer]]:
    """A client in front of a server in a process of its own; leaves nothing behind."""
    with ReferenceServer(SCRIPT, pace=PACE, max_batch=4 * CROWD, process=True) as server:
        made = config(server.base_url, policy, list(drafts))
        async with AsyncSpecRoute(config=made, max_retries=0) as client:
            assert await client.warm_up() == []
            standing = set(client.router.supervisor._tasks)
            yield client, server
            for task in client.router.supervisor._tasks - standing:
                await asyncio.wait([task], timeout=10)
            left = {t.get_name() for t in client.router.supervisor._tasks - standing}
            assert left <= {"measurements"}
            pool: Any = client.router.http_client._transport._pool  # type: ignore[attr-defined]
            assert all(each.is_idle() for each in pool.connections)
            assert len(pool.connections) <= 100
            assert not pool._requests


async def one(client: AsyncSpecRoute, n: int, stream: bool) -> tuple[str, str | None]:
    """(text, method) of one answer; the question quotes it, so that look-ups find it."""
    messages: Any = [{"role": "user", "content": f"Say it again: {ANSWERS[n]}."}]
    answer: Any = await client.chat.completions.create(
        model="m", messages=messages, temperature=0, stream=stream
    )
    if not stream:
        return answer.choices[0].message.content, report(answer).method
    parts = [c.choices[0].delta.content or "" async for c in answer if c.choices]
    return "".join(parts), report(answer).method


@pytest.mark.parametrize(
    ("policy", "drafts", "stream", "methods"),
    [
        (FIXED, ["ngram"], True, {Method.SCORE}),
        (LANES, ["ngram"], False, {Method.PREFIX}),
        ("latency", ["ngram"], True, None),
    ],
    ids=["score", "lanes", "adaptive"],
)
async def test_a_crowd_is_answered_right(
    policy: Any, drafts: list[str], stream: bool, methods: set[Method] | None
) -> None:
    """Whoever asks for what: each gets its own answer, by the method that was asked for."""
    crowd = CROWD // 2 if policy is LANES else CROWD  # Lanes are further requests.
    async with asked_by(policy, *drafts) as (client, _):
        found = await asyncio.gather(*(one(client, n, stream) for n in range(crowd)))
    assert [text for text, _ in found] == ANSWERS[:crowd]
    if methods is not None:
        assert {method for _, method in found} == {m.value for m in methods}


async def test_half_of_a_crowd_leaves() -> None:
    """At any moment of their answers: the others' are right, nothing of those who left goes on."""
    rng = random.Random(8)
    async with asked_by(FIXED, "ngram") as (client, _):
        tasks = [asyncio.create_task(one(client, n, True)) for n in range(CROWD)]
        leaving = rng.sample(range(CROWD), CROWD // 2)
        for n in leaving:
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.6), tasks[n].cancel)
        found = await asyncio.gather(*tasks, return_exceptions=True)
    stayed = set(range(CROWD)) - set(leaving)
    assert all(found[n] == (ANSWERS[n], "score") for n in stayed)
    assert any(isinstance(found[n], asyncio.CancelledError) for n in leaving)


async def quiet(tasks: int) -> None:
    """Wait until no more than so many are alive, for ten turns of the loop: openai's generators,
    left at ``[DONE]``, are closed in tasks of the loop's own, one after the other."""
    turns = 0
    async with asyncio.timeout(10):
        while turns < 10:
            turns = turns + 1 if len(asyncio.all_tasks()) <= tasks else 0
            await asyncio.sleep(0)


async def test_waves_leave_no_objects_behind() -> None:
    """After a warm-up a wave of requests adds none that stay: not one for each request."""
    few = 20
    counts = []
    async with asked_by(FIXED, "ngram") as (client, server):
        for _ in range(5):
            await asyncio.gather(*(one(client, n, True) for n in range(few)))
            await quiet(1 + client.router.supervisor.running)
            gc.collect()
            # The server's records are read in this process: two objects each.
            counts.append(len(gc.get_objects()) - 2 * len(server.log))
    assert min(counts[-2:]) - min(counts[1:3]) < few, counts

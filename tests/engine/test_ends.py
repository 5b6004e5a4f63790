"""An answer ends as the plain one: text, finish_reason, usage and the shape of its chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, Seen, ask, script
from tests.engine.world import World, speculating

STOPS: dict[str, Any] = {
    "none": None,
    "within a token": "uic",
    "a whole token": "two",
    "across tokens": "mps ov",
    "across commits": "three, four; one",
    "several": ["lazy", "fox jum", "zzz"],
    "one begins in the other": ["two, six. T", "six. The q"],
    "never": "nowhere",
    "the first characters": "on",
    "the last character": "s",
}


@pytest.fixture(scope="module")
def server() -> Any:
    with ReferenceServer(script()) as running:
        yield running


@asynccontextmanager
async def both(
    server: ReferenceServer,
    method: str,
    k: int,
    *,
    wrong: float = 0.3,
    seed: int = 0,
    **policy: Any,
) -> AsyncIterator[tuple[Any, Any]]:
    """(a plain client, a speculating one)."""
    world = World(server.backend and script())
    drafter = EchoDrafter(world.spec, wrong=wrong, seed=seed)
    chosen = {"preset": "fixed", "method": method, "num_speculative_tokens": k, **policy}
    async with speculating(world, server, drafter=drafter, policy=chosen) as client:
        yield client.with_options(policy={"preset": "fixed", "method": "plain"}), client


async def same(plain: Any, client: Any, **body: Any) -> Seen:
    """Ask both; what callers see must be equal. Returns the speculative answer."""
    expected = await ask(plain, **body)
    got = await ask(client, **body)
    assert got.content == expected.content
    assert got.report is not None
    assert got.report.complete
    assert got.report.drafted >= got.report.accepted + got.report.rejected
    return got


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("method", ["score", "prefix"])
async def test_stop_strings_end_the_answer_where_a_plain_one_ends(
    server: ReferenceServer, method: str, stop: Any
) -> None:
    """In a token, across tokens, commits and rounds, inside a draft, several at once."""
    body = {} if stop is None else {"stop": stop}
    for k in (1, 4, 8):
        async with both(server, method, k) as (plain, client):
            for stream in (True, False):
                got = await same(plain, client, stream=stream, max_tokens=40, **body)
                assert got.report is not None
                assert got.report.method == method


@pytest.mark.parametrize("method", ["score", "prefix"])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_max_tokens_ends_the_answer_inside_a_draft(
    server: ReferenceServer, method: str, chat: bool
) -> None:
    """From one token to one more than there are."""
    async with both(server, method, 4, wrong=0.15) as (plain, client):
        prompt = "go" if chat else "<|assistant|>"
        for limit in (1, 2, 3, 5, 8, 27, 28, 29, 40):
            got = await same(plain, client, chat=chat, prompt=prompt, max_tokens=limit)
            assert got.text
            assert TEXT.startswith(got.text)


@pytest.mark.parametrize("method", ["score", "prefix"])
async def test_a_chat_without_max_tokens_ends_with_the_end_token(
    server: ReferenceServer, method: str
) -> None:
    """Inside a draft, as a recovered and as a bonus token."""
    for k in (1, 2, 3, 5, 8):
        for wrong in (0.0, 0.5):
            async with both(server, method, k, wrong=wrong) as (plain, client):
                got = await same(plain, client)
                assert (got.text, got.finish) == (TEXT, "stop")


@pytest.mark.parametrize("include_usage", [True, False, None], ids=str)
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_usage_comes_as_in_a_plain_stream(
    server: ReferenceServer, chat: bool, include_usage: bool | None
) -> None:
    """In one last chunk without choices where it was asked for, else not at all."""
    async with both(server, "score", 4) as (plain, client):
        prompt = "go" if chat else "<|assistant|>"
        got = await same(
            plain, client, chat=chat, prompt=prompt, max_tokens=9, include_usage=include_usage
        )
        assert got.usage_chunks == (1 if include_usage else 0)


@pytest.mark.parametrize(
    ("stop", "text"),
    [("four; one", "one, two, three, "), (["two, thr", "three"], "one, "), ("one, two, t", "")],
    ids=str,
)
async def test_a_stop_string_may_span_the_hand_over(
    server: ReferenceServer, stop: Any, text: str
) -> None:
    """Begun in scored tokens, completed in the plain stream, whose server can't see it whole."""
    for k in (1, 2, 3):
        async with both(server, "score", k, wrong=0.0, max_rounds=1) as (plain, client):
            got = await same(plain, client, stop=stop, max_tokens=40)
            assert (got.text, got.finish) == (text, "stop")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(["score", "prefix"]),
    k=st.integers(1, 8),
    wrong=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    seed=st.integers(0, 1000),
    limit=st.none() | st.integers(1, 32),
    cut=st.none() | st.tuples(st.integers(0, len(TEXT) - 2), st.integers(1, 12)),
    rounds=st.sampled_from([0, 0, 1, 2, 3]),
    stream=st.booleans(),
)
async def test_any_greedy_answer_is_the_plain_one(server: ReferenceServer, **case: Any) -> None:
    """Whatever K, draft, limit, stop string and hand-over."""
    policy = {"max_rounds": case["rounds"]}
    body: dict[str, Any] = {"stream": case["stream"]}
    if case["limit"] is not None:
        body["max_tokens"] = case["limit"]
    if case["cut"] is not None:
        start, size = case["cut"]
        body["stop"] = TEXT[start : start + size]
    async with both(
        server, case["method"], case["k"], wrong=case["wrong"], seed=case["seed"], **policy
    ) as (plain, client):
        await same(plain, client, **body)

"""A target that fails while it is being speculated on: the same one goes on, or the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specroute import AsyncSpecRoute
from specroute.method.score import UNFINISHED
from specroute.reference.running import ReferenceServer
from specroute.speculation.speculator import Speculator
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.world import World, chain, speculating
from tests.support.proxy import Fault, Judge, Proxy

BREAKS = [Fault("cut", after=4), Fault("silence", after=4)]
QUICK = {"first_token": 5, "stall": 0.5, "total": 20}


@pytest.fixture(scope="module")
def server() -> Any:
    with ReferenceServer(script()) as running:
        yield running


def draws_unseen(body: Mapping[str, Any]) -> bool:
    """A draw from what the rejected token's evidence left unseen: all that was seen is barred."""
    return any(bias < 0 for bias in body.get("logit_bias", {}).values())


@asynccontextmanager
async def two(
    server: ReferenceServer, judge: Judge, method: str, drafter: EchoDrafter, **options: Any
) -> AsyncIterator[tuple[Any, Proxy]]:
    """Two ways to one server, the first with faults: model ``m`` prefers it."""
    async with Proxy(server.base_url, judge) as proxy:
        provider = {
            "profile": "reference",
            "capabilities": {"score": ["echo"]},
            "timeouts": QUICK,
        }
        policy = {"preset": "fixed", "method": method, "num_speculative_tokens": 3}
        config = {
            "version": 1,
            "providers": {
                "lab": {**provider, "base_url": proxy.base_url},
                "hub": {**provider, "base_url": server.base_url},
            },
            "drafts": {"table": {"kind": "ngram"}},
            "models": {
                "m": {"targets": ["lab:chain", "hub:chain"], "drafts": ["table"], "policy": policy}
            },
            "shadow": {"share": 0.0},
        }
        async with AsyncSpecRoute(config=config, **{"max_retries": 0, **options}) as client:
            router = client.router
            router.speculation = Speculator(
                router.config, router.http, router.supervisor, drafters={"table": drafter}
            )
            yield client, proxy


def every_stream(fault: Fault) -> Judge:
    return lambda path, body, n: fault if body.get("stream") else None


def first_stream(fault: Fault) -> Judge:
    seen = 0

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        nonlocal seen
        seen += bool(body.get("stream"))
        return fault if body.get("stream") and seen == 1 else None

    return judge


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("method", ["score", "prefix"])
@pytest.mark.parametrize("fault", BREAKS, ids=["cut", "silence"])
async def test_the_next_target_goes_on(
    server: ReferenceServer, fault: Fault, method: str, stream: bool
) -> None:
    """From what was committed; the label and the attempts say so."""
    drafter = EchoDrafter(script(), mode="raise", after=1)
    async with two(server, every_stream(fault), method, drafter) as (client, _):
        got = await ask(client, stream=stream)
    told = got.report
    assert (got.text, got.finish, got.usage) == (TEXT, "stop", (5, 27))
    assert told is not None
    assert (told.target, told.exactness, told.complete) == ("hub:chain", "bounded", True)
    assert told.attempts[-1].target == "hub:chain"
    assert told.attempts[-1].purpose == "resume"
    assert "went on from its text" in " ".join(told.notes)
    if stream:
        assert (got.roles, got.usage_chunks) == (1, 1)


@pytest.mark.parametrize("fault", BREAKS, ids=["cut", "silence"])
async def test_the_same_target_goes_on_where_a_retry_is_left(
    server: ReferenceServer, fault: Fault
) -> None:
    """And is bounded, since its text is cut into tokens anew."""
    drafter = EchoDrafter(script(), mode="raise", after=1)
    judge = first_stream(fault)
    async with two(server, judge, "score", drafter, max_retries=1) as (client, _):
        got = await ask(client)
    assert (got.text, got.finish) == (TEXT, "stop")
    assert got.report is not None
    assert {a.target for a in got.report.attempts} == {"lab:chain"}
    assert got.report.attempts[-1].purpose == "resume"
    assert got.report.exactness == "bounded"


async def test_what_fails_before_any_text_is_asked_elsewhere(server: ReferenceServer) -> None:
    """A target whose every call fails: the whole answer is the next one's."""
    drafter = EchoDrafter(script())
    judge: Judge = lambda path, body, n: Fault("status", status=503)  # noqa: E731
    async with two(server, judge, "score", drafter) as (client, _):
        got = await ask(client)
    assert (got.text, got.finish) == (TEXT, "stop")
    assert got.report is not None
    assert (got.report.target, got.report.exactness) == ("hub:chain", "bounded")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_target_that_cools_is_not_speculated_on(
    server: ReferenceServer, stream: bool
) -> None:
    """The next one is, and its label says whose answer it is."""
    drafter = EchoDrafter(script())
    async with two(server, lambda *_: None, "score", drafter) as (client, proxy):
        router = client.router
        lab = router.health.of(router.config.providers["lab"], "chain")
        lab.cools_until = router.health.clock() + 60
        got = await ask(client, stream=stream)
    assert got.text == TEXT
    assert got.report is not None
    assert (got.report.target, got.report.method) == ("hub:chain", "score")
    assert got.report.exactness == "bounded"
    assert got.report.exactness_reason == (
        "answered by hub:chain: the same model at another provider"
    )
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("fault", "times", "label"),
    [
        (Fault("hang"), 99, "heuristic"),
        (Fault("status", status=503), 99, "heuristic"),
        (Fault("status", status=503), 1, "exact"),
    ],
    ids=["deadline", "fault", "fault once"],
)
async def test_a_rejection_is_finished_or_the_label_says_so(
    fault: Fault, times: int, label: str
) -> None:
    """A deadline or fault between a rejected token and the draw in its place: the draw is asked for
    once more; where that fails, too, the answer goes on, but is no longer called exact."""
    world = World(chain())
    hit = 0

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        nonlocal hit
        if not draws_unseen(body):
            return None
        hit += 1
        return fault if hit <= times else None

    with ReferenceServer(world.spec, seed=2, max_logprobs=3) as server:
        async with Proxy(server.base_url, judge) as proxy:
            provider = {
                "base_url": proxy.base_url,
                "capabilities": {"score": ["echo"], "echo_max_logprobs": 3},
                "timeouts": {"first_token": 4, "stall": 1.5, "total": 30},
            }
            async with speculating(
                world, server, k=2, drafter=world.drafter("bad"), provider=provider
            ) as client:
                await client.warm_up()
                for seed in range(60):
                    got = await ask(
                        client,
                        chat=False,
                        prompt=list(world.vocabulary.encode("a")),
                        max_tokens=6,
                        temperature=1.0,
                        extra_body={"specroute": {"seed": seed}},
                    )
                    if hit:
                        break
    assert hit
    assert got.report is not None
    assert (got.report.complete, got.report.exactness) == (True, label)
    if label == "heuristic":
        assert got.report.exactness_reason == UNFINISHED


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unfinished_rejection_of_the_first_token_is_no_exact_plain_call(
    stream: bool,
) -> None:
    """Nothing is committed and the request goes plain as it is, but the rejected token is drawn
    anew with it: the label says so."""
    world = World(chain())
    judge: Judge = lambda path, body, n: (  # noqa: E731
        Fault("status", status=503) if draws_unseen(body) else None
    )
    with ReferenceServer(world.spec, seed=2, max_logprobs=3) as server:
        async with Proxy(server.base_url, judge) as proxy:
            provider = {
                "base_url": proxy.base_url,
                "capabilities": {"score": ["echo"], "echo_max_logprobs": 3},
            }
            for seed in range(40):
                async with speculating(
                    world,
                    server,
                    drafter=world.drafter("bad"),
                    provider=provider,
                    policy={"preset": "fixed", "method": "cascade"},
                ) as client:
                    await client.warm_up()
                    got = await ask(
                        client,
                        chat=False,
                        stream=stream,
                        prompt=list(world.vocabulary.encode("b")),
                        max_tokens=6,
                        temperature=1.0,
                        extra_body={"specroute": {"seed": seed}},
                    )
                assert got.report is not None
                if got.report.method == "plain":
                    break
    assert (got.report.method, got.report.exactness) == ("plain", "heuristic")
    assert got.report.exactness_reason == UNFINISHED

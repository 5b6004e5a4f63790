"""Lanes: every prefill dialect, boundaries seen and unseen, ended at once where the draft failed."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_exits import active, quiet, until
from tests.engine.world import World, speculating

pytestmark = pytest.mark.alone

DIALECTS = ["continue_final_message", "prefix", "partial", "trailing_assistant", "body_prefix"]
TEXT_ONLY = {"id_prompts": False, "completions": False, "score": []}


@pytest.mark.parametrize("both", [False, True], ids=["goes on", "repeats and trims"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_lanes_by_text_give_the_plain_answer(dialect: str, seen: bool, both: bool) -> None:
    """In each prefill dialect, whether or not tokens are shown, the prefix comes back or its end
    is lost."""
    spec = script()
    options: dict[str, Any] = {"disable": ["completions"] if seen else ["completions", "logprobs"]}
    capabilities = {
        **TEXT_ONLY,
        "prefill": dialect,
        "prefill_repeats": both,
        "prefill_trims": both,
        "chat_max_logprobs": 20 if seen else 0,
    }
    with ReferenceServer(
        spec, prefill=[dialect], prefill_repeats=both, prefill_trims=both, **options
    ) as server:
        provider = {"capabilities": capabilities}
        for wrong in (0.0, 0.3):
            drafter = EchoDrafter(spec, wrong=wrong, text_only=True)
            async with speculating(
                World(spec), server, method="prefix", drafter=drafter, provider=provider
            ) as client:
                plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
                for limit in (None, 7):
                    body = {} if limit is None else {"max_tokens": limit}
                    expected = await ask(plain, **body)
                    got = await ask(client, **body)
                    assert (got.text, got.finish) == (expected.text, expected.finish)
                    report = got.report
                    assert report is not None
                    assert report.method == "prefix"
                    assert report.drafted >= report.accepted + report.rejected
                    if seen:
                        assert got.usage == expected.usage
                await quiet(server)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
async def test_lanes_over_completions_by_text(seen: bool) -> None:
    """Where the server takes no ids, the caller's prompt goes on as text; stop strings and
    max_tokens end the answer where a plain one ends."""
    spec = script()
    disable = ["id_prompts", "tokenize"] if seen else ["id_prompts", "tokenize", "logprobs"]
    capabilities = {
        "id_prompts": False,
        "completions": True,
        "score": [],
        "echo_max_logprobs": 5 if seen else 0,
        "template": "apply-template",
    }
    with ReferenceServer(spec, disable=disable, pace="tpot=6ms") as server:
        async with speculating(
            World(spec),
            server,
            method="prefix",
            drafter=EchoDrafter(spec, text_only=True),
            provider={"capabilities": capabilities},
        ) as client:
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            for more in ({}, {"stop": "fox"}):
                asked: dict[str, Any] = {"chat": False, "prompt": "<|assistant|>", **more}
                expected = await ask(plain, max_tokens=60, **asked)
                got = await ask(client, max_tokens=60, **asked)
                assert (got.text, got.finish) == (expected.text, expected.finish)
                assert got.report is not None
                assert got.report.method == "prefix", got.report
                assert any(a.purpose == "lane" for a in got.report.attempts)
            await quiet(server)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
async def test_a_lane_by_text_takes_over_where_the_boundary_is_sure(seen: bool) -> None:
    """On a paced server, with the label that says what text leaves open."""
    spec = script()
    capabilities = {**TEXT_ONLY, "chat_max_logprobs": 20 if seen else 0}
    with ReferenceServer(spec, pace="tpot=10ms") as server:
        drafter = EchoDrafter(spec, text_only=True)
        async with speculating(
            World(spec),
            server,
            method="prefix",
            k=6,
            drafter=drafter,
            provider={"capabilities": capabilities},
        ) as client:
            got = await ask(client)
            assert (got.text, got.finish) == (TEXT, "stop")
            report = got.report
            assert report is not None
            assert report.exactness == "bounded"
            assert "retokenised" in (report.exactness_reason or "")
            lanes = [a for a in report.attempts if a.purpose == "lane"]
            assert any(a.outcome == "ok" or a.usage.completion_tokens for a in lanes)


async def test_lanes_shorten_the_answer_and_lane_zero_starts_no_later() -> None:
    """By ids, with a good draft; the first text comes when a plain call's would."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=20ms,ttft=40ms") as server:
        drafter = EchoDrafter(spec)
        async with speculating(
            World(spec), server, method="prefix", k=4, drafter=drafter
        ) as client:
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            await ask(client)
            slow = [(await ask(plain)).report for _ in range(3)]
            fast = [(await ask(client)).report for _ in range(3)]
            assert min(r.total_s or 9 for r in fast if r) < 0.85 * min(
                r.total_s or 0 for r in slow if r
            )
            # one more round trip, for the chat's template, and no further step
            assert min(r.ttft_s or 9 for r in fast if r) < 0.04 + min(
                r.ttft_s or 0 for r in slow if r
            )
            assert {r.exactness for r in fast if r} == {"exact-greedy"}


async def test_lanes_of_a_draft_that_failed_end_within_a_step() -> None:
    """The leading lane's next token shows it; the server then works on one sequence only. The best
    of a few tries: how long it takes is the machine's matter as well."""
    spec = script()
    best = math.inf
    with ReferenceServer(spec, pace="tpot=30ms") as server:
        drafter = EchoDrafter(spec, wrong=1.0)
        async with speculating(
            World(spec), server, method="prefix", k=4, drafter=drafter
        ) as client:
            await client.warm_up()
            for _ in range(5):
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "go"}],
                    temperature=0,
                    stream=True,
                )
                await until(lambda: active(server) == 4)
                started = time.perf_counter()
                await until(lambda: active(server) == 1)
                best = min(best, time.perf_counter() - started)
                await stream.close()
                await quiet(server)
                if best < 0.1:
                    break
    assert best < 0.1


async def test_a_stream_beside_lanes_is_no_measure_of_the_plain_pace() -> None:
    """Lanes take the target's time from each other: only one that ran alone tells."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=4ms") as server:
        for wrong in (0.0, 1.0):
            drafter = EchoDrafter(spec, wrong=wrong)
            async with speculating(World(spec), server, method="prefix", drafter=drafter) as client:
                await client.warm_up()
                seen = client.router.speculation.measurements.targets["lab:chain"]
                before = seen.ttft.seen, seen.tpot.seen
                got = await ask(client)
                assert got.report is not None
                assert any(call.purpose == "lane" for call in got.report.attempts)
                assert seen.ttft.seen > before[0]
                assert seen.tpot.seen == before[1]

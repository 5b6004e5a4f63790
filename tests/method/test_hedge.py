"""``hedge``: a second request where the first token is late, within a bucket; the first token wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer
from specroute.target.hedging import NEEDED, Hedging, quantile
from tests.engine.answers import TEXT, ask, script
from tests.engine.test_exits import quiet
from tests.support.proxy import Fault, Proxy

pytestmark = pytest.mark.alone


def test_the_quantile_is_of_the_last_requests() -> None:
    """None before there are enough; then what 95 of 100 keep."""
    hedging = Hedging()
    for i in range(NEEDED - 1):
        hedging.seen(i / 100)
    assert hedging.after_s is None
    hedging.seen(0.19)
    assert hedging.after_s == pytest.approx(0.1805)
    assert quantile([1.0], 0.95) == 1.0
    for _ in range(500):
        hedging.seen(2.0)
    assert hedging.after_s == 2.0


def test_the_bucket_bounds_the_share() -> None:
    """Whatever happens, no more than the share and a burst of two."""
    hedging = Hedging()
    taken = 0
    for _ in range(1000):
        hedging.begin(0.05)
        taken += hedging.take()
    assert 50 <= taken <= 52
    for _ in range(100):
        hedging.begin(0.5)
    assert [hedging.take() for _ in range(3)] == [True, True, False]


@asynccontextmanager
async def hedged(
    base_url: str, ttft_s: float | None = 0.05, share: float = 1.0
) -> AsyncIterator[AsyncSpecRoute]:
    """A client without any draft that has seen enough TTFTs of about ``ttft_s``."""
    config: Mapping[str, Any] = {
        "version": 1,
        "providers": {"lab": {"profile": "reference", "base_url": base_url}},
        "models": {
            "m": {
                "targets": ["lab:chain"],
                "policy": {"preset": "fixed", "method": "hedge", "hedge": share},
            }
        },
    }
    async with AsyncSpecRoute(config=config) as client:
        if ttft_s is not None:
            await ask(client)  # makes the target known
            (target,) = client.router.speculation.pool.targets.values()
            for _ in range(200):
                target.hedging.seen(ttft_s)
        yield client


def late(times: int) -> Any:
    """The first so many streamed requests after the first are never answered."""
    left = [times]

    def judge(path: str, body: Any, before: int) -> Fault | None:
        if before and body.get("stream") and left[0]:
            left[0] -= 1
            return Fault("hang")
        return None

    return judge


async def test_a_late_first_token_is_overtaken_by_a_second_request() -> None:
    """The answer is plain's, its label exact; the loser is cancelled and booked."""
    with ReferenceServer(script()) as server:
        async with Proxy(server.base_url, late(1)) as proxy, hedged(proxy.base_url) as client:
            got = await ask(client)
            assert (got.text, got.finish) == (TEXT, "stop")
            report = got.report
            assert report is not None
            assert (report.method, report.exactness) == ("hedge", "exact-greedy")
            assert report.drafter is None
            outcomes = {a.purpose: a.outcome for a in report.attempts}
            assert outcomes == {"plain": "cancelled", "hedge": "ok"}
            assert any("a second request was sent" in note for note in report.notes)
            assert got.usage is not None and got.usage[0] == report.prompt_tokens


async def test_a_first_token_in_time_stays_alone() -> None:
    """And so does every request before the TTFTs are known."""
    with ReferenceServer(script()) as server:
        async with hedged(server.base_url, ttft_s=30.0) as client:
            report = (await ask(client)).report
            assert report is not None and [a.purpose for a in report.attempts] == ["plain"]
        async with Proxy(server.base_url, late(0)) as proxy, hedged(proxy.base_url, None) as client:
            for _ in range(3):
                report = (await ask(client)).report
                assert report is not None and [a.purpose for a in report.attempts] == ["plain"]


async def test_no_more_requests_are_hedged_than_the_bucket_has() -> None:
    """The third late one in a row waits for its own answer."""
    with ReferenceServer(script(), pace="ttft=80ms") as server:
        async with hedged(server.base_url, ttft_s=0.01, share=0.0) as client:
            sent = []
            for _ in range(3):
                report = (await ask(client)).report
                assert report is not None
                sent.append(len(report.attempts))
            assert sent == [2, 1, 1]


async def test_the_winner_is_the_first_token_not_the_first_to_finish() -> None:
    """Of two streams the one that began first is read to its end, though the other is done sooner."""
    with ReferenceServer(script(), pace="ttft=60ms,tpot=3ms") as server:
        async with hedged(server.base_url, ttft_s=0.01) as client:
            got = await ask(client)
            assert got.text == TEXT
            assert got.report is not None
            outcomes = {a.purpose: a.outcome for a in got.report.attempts}
            assert outcomes == {"hedge": "cancelled", "plain": "ok"}
            await quiet(server)


async def test_one_that_fails_leaves_the_other() -> None:
    """Only when both have failed is there an error, after the plain call's own tries."""

    def second(path: str, body: Any, before: int) -> Fault | None:
        return Fault("status", 503) if before == 2 else None

    with ReferenceServer(script(), pace="ttft=80ms") as server:
        async with Proxy(server.base_url, second) as proxy, hedged(proxy.base_url, 0.01) as client:
            got = await ask(client)
            assert got.text == TEXT
            assert got.report is not None
            assert sorted(a.outcome for a in got.report.attempts) == ["ok", "status 503"]

    def all_of_them(path: str, body: Any, before: int) -> Fault | None:
        return Fault("status", 503) if before else None

    with ReferenceServer(script()) as server:
        async with Proxy(server.base_url, all_of_them) as proxy, hedged(proxy.base_url) as client:
            with pytest.raises(openai.InternalServerError):
                await ask(client.with_options(max_retries=0))


@pytest.mark.parametrize("after", [0.0, 0.03, 0.1, 0.2])
async def test_leaving_ends_both(after: float) -> None:
    """Before the first token, with two under way, and in the answer."""
    with ReferenceServer(script(), pace="ttft=120ms,tpot=10ms") as server:
        async with hedged(server.base_url, ttft_s=0.05) as client:
            task = asyncio.create_task(ask(client, stream=False))
            await asyncio.sleep(after)
            task.cancel()
            await asyncio.wait([task])
            await quiet(server)


async def test_the_distribution_is_the_plain_ones() -> None:
    """Sampled at temperature 1 with every request hedged: frequencies are the script's own."""
    spec = {
        "name": "chain",
        "vocabulary": ["a", "b", "c", "</s>"],
        "eos": "</s>",
        "default": {"a": 0.6, "b": 0.3, "c": 0.1},
    }
    with ReferenceServer(spec, pace="ttft=4ms") as server:
        async with hedged(server.base_url, ttft_s=0.0005) as client:
            (target,) = client.router.speculation.pool.targets.values()
            counts = {"a": 0, "b": 0, "c": 0}
            n, hedges = 120, 0
            for _ in range(n):
                target.hedging._tokens = 1.0
                for _ in range(200):
                    target.hedging.seen(0.0005)
                got = await ask(client, temperature=1, max_tokens=1)
                counts[got.text] += 1
                assert got.report is not None
                hedges += len(got.report.attempts) == 2
            assert hedges > n / 2
            expected = {"a": 0.6 * n, "b": 0.3 * n, "c": 0.1 * n}
            chi2 = sum((counts[k] - expected[k]) ** 2 / expected[k] for k in counts)
            assert chi2 < 13.8  # p = .001 at two degrees of freedom

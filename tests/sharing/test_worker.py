"""Workers at a real Redis: what one measures the others know, once and whole."""

from __future__ import annotations

import time
from typing import Any

import pytest

from specroute.config import parse
from specroute.measured import Kept
from specroute.sharing import server
from specroute.sharing.names import Names
from specroute.sharing.worker import State
from tests.sharing.world import DRAFT, HOW, TARGET, TRAFFIC, Worker, workers
from tests.support.redis_server import RedisServer


async def test_what_one_has_measured_the_other_plans_by(redis_server: RedisServer) -> None:
    """Survival, a round's time, plain pace, a draft's time, the answer's length."""
    async with workers(redis_server) as (a, b):
        a.answer(30)
        await a.visits()
        await b.visits()
        ours, theirs = a.figures, b.figures
        assert theirs.acceptance.survival(4) == pytest.approx(ours.acceptance.survival(4))
        assert theirs.rounds_seen.weight == pytest.approx(ours.rounds_seen.weight)
        assert theirs.round_time(100, 4) is not None
        assert theirs.pace.tpot_s == pytest.approx(ours.pace.tpot_s, rel=0.01)
        assert theirs.pace.ttft_s == pytest.approx(ours.pace.ttft_s, rel=0.01)
        assert theirs.draft_s == pytest.approx(ours.draft_s, rel=0.01)
        assert theirs.pace.answer_tokens == pytest.approx(80)
        assert (a.sharing.state, b.sharing.state) == (State.SHARED, State.SHARED)
        # What it has heard, it doesn't tell again.
        await b.visits()
        await a.visits()
        assert a.sharing.counts["heard"] == 0
        assert a.figures.rounds_seen.weight == pytest.approx(ours.rounds_seen.weight)


async def test_who_comes_later_starts_from_figures_and_what_came_after(
    redis_server: RedisServer,
) -> None:
    """Nothing counts twice, whether it was told before or after the figures were left."""
    async with workers(redis_server) as (a, b):
        a.answer(10)
        await a.visits()  # gets the turn
        a.answer(10)
        await a.visits()  # leaves figures, with these
        with redis_server.client() as client:
            assert client.keys("specroute:learned:*:whole")
        b.answer(5)
        await b.visits()
        await a.visits()
        late = await Worker(redis_server.url).joins()
        try:
            assert late.figures.rounds_seen.weight == pytest.approx(
                a.figures.rounds_seen.weight, rel=0.01
            )
            assert late.figures.pace.tpot_s == pytest.approx(0.03, rel=0.01)
        finally:
            await late.aclose()


async def test_rounds_of_an_answer_under_way_count_once_for_who_comes_later(
    redis_server: RedisServer,
) -> None:
    """Those before figures are left are in the figures, those after them in a message."""
    async with workers(redis_server) as (a, b):
        a.answer(5)
        await a.visits()  # gets the turn
        under_way = object()

        def half() -> None:
            for _ in range(20):
                a.seen.passed(TARGET, DRAFT, TRAFFIC, 3, 4, 0, HOW, None, under_way, time.time())

        half()
        await a.visits()  # leaves figures
        late = await Worker(redis_server.url).joins()
        half()
        a.seen.over(TARGET, DRAFT, TRAFFIC, under_way, HOW)
        await a.visits()
        for each in (b, late):
            await each.visits()
            assert each.figures.rounds_seen.weight == pytest.approx(
                a.figures.rounds_seen.weight, rel=0.01
            )
        await late.aclose()


async def test_figures_wait_while_a_message_may_not_have_arrived(
    redis_server: RedisServer,
) -> None:
    """What was measured behind it would count twice."""
    async with workers(redis_server, 1) as (a,):
        a.answer(5)
        await a.visits()  # gets the turn
        a.answer(5)
        a.sharing._message()
        a.answer(5)
        await a.visits()
        with redis_server.client() as client:
            assert not client.keys("specroute:learned:*:whole")
        await a.visits()
        late = await Worker(redis_server.url).joins()
        assert late.figures.rounds_seen.weight == pytest.approx(
            a.figures.rounds_seen.weight, rel=0.01
        )
        await late.aclose()


async def test_a_message_told_twice_is_heard_once(redis_server: RedisServer) -> None:
    """As after an answer of the server's that never came."""
    async with workers(redis_server) as (a, b):
        a.answer(10)
        message = a.sharing._message()
        assert message is not None
        tell = server.fields(a.sharing._server.worker, a.sharing.names.host, *message)
        await a.sharing._server.visit("$", tell)
        await a.visits()
        await b.visits()
        assert b.figures.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight)


async def test_a_rise_of_r_that_one_sees_ends_the_others_speculation(
    redis_server: RedisServer,
) -> None:
    """Its law follows, though it has made no round since."""
    async with workers(redis_server) as (a, b):
        a.answer(20)
        await a.visits()
        await b.visits()
        before = b.figures.round_time(100, 4)
        a.answer(5, verify_s=0.4)
        await a.visits()
        await b.visits()
        after = b.figures.round_time(100, 4)
        assert before is not None and after is not None
        assert before.high < 0.1 < 0.3 < after.low


async def test_other_machines_times_are_a_start_and_no_more(redis_server: RedisServer) -> None:
    """Acceptance is the same everywhere; a call's time is one's own as soon as it is known, a
    local draft's always."""
    async with workers(redis_server, 1, host="here") as (a,):
        there = await Worker(redis_server.url, host="there").joins()
        try:
            a.answer(20, verify_s=0.05)
            a.seen.draft_time("fleet", 0.04)
            await a.visits()
            await there.visits()
            found = there.figures
            assert found.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight)
            assert found.draft_s is None
            assert there.seen.drafts["fleet"].token.value == pytest.approx(0.04)
            law = found.round_law
            assert law is not None and law.weight <= 5
            there.answer(3, verify_s=0.5)
            own = there.figures.round_time(100, 4)
            assert own is not None and own.mean == pytest.approx(0.5, rel=0.2)
            a.answer(30, verify_s=0.05)
            await a.visits()
            await there.visits()
            own = there.figures.round_time(100, 4)
            assert own is not None and own.mean == pytest.approx(0.5, rel=0.2)
        finally:
            await there.aclose()


async def test_figures_left_elsewhere_are_a_start_as_well(redis_server: RedisServer) -> None:
    """In the figures as in the messages; one's own host's are preferred."""
    async with workers(redis_server, 1, host="here") as (a,):
        a.answer(30)
        await a.visits(2)
        there = await Worker(redis_server.url, host="there").joins()
        here = await Worker(redis_server.url, host="here").joins()
        try:
            assert there.figures.draft_s is None
            assert there.figures.round_law is not None and there.figures.round_law.weight <= 4.01
            assert there.figures.rounds_seen.weight == pytest.approx(
                a.figures.rounds_seen.weight, rel=0.01
            )
            assert here.figures.draft_s == pytest.approx(0.005, rel=0.01)
            assert here.figures.round_law is not None and here.figures.round_law.weight > 20
        finally:
            await there.aclose()
            await here.aclose()


async def test_a_clock_that_is_wrong_ages_nothing(redis_server: RedisServer) -> None:
    """Times are taken on the server's clock, by who tells and who starts from figures."""
    async with workers(redis_server) as (a, b):
        a.skew, b.skew = 90 * 86400.0, -90 * 86400.0
        a.answer(20)
        await a.visits(2)
        await b.visits()
        assert b.figures.rounds_seen.weight == pytest.approx(a.figures.rounds_seen.weight)
        now = b.sharing._wall()
        assert abs(b.seen.targets[TARGET].seen_at - now) < 5
        late = Worker(redis_server.url)
        await late.joins()
        try:
            assert late.figures.rounds_seen.weight == pytest.approx(
                a.figures.rounds_seen.weight, rel=0.01
            )
            rounds = late.seen.rounds[TARGET, DRAFT, HOW, TRAFFIC]
            assert abs(rounds.seen_at - late.sharing._wall()) < 5
        finally:
            await late.aclose()


async def test_everything_expires_that_nobody_uses(redis_server: RedisServer) -> None:
    """The stream, the figures, whose turn it is."""
    async with workers(redis_server, 1) as (a,):
        a.answer(5)
        await a.visits(2)
        with redis_server.client() as client:
            keys = client.keys("specroute:learned:*")
            assert len(keys) == 4
            assert all(0 < client.ttl(key) <= server.KEPT_S for key in keys)


def test_who_learns_together_asks_the_same_server_in_the_same_way() -> None:
    """Whatever else is in their configs."""

    def names(**changes: Any) -> Names:
        tables: dict[str, Any] = {
            "version": 1,
            "providers": {"lab": {"profile": "vllm", "base_url": "http://10.0.0.5/v1"}},
            "models": {"smart": {"targets": ["lab:big"], "drafts": ["ngram"]}},
            "store": {"kind": "redis", "url": "redis://10.0.0.7:6379/0"},
            **changes,
        }
        made = parse(tables, "test", {})
        return Names(made, Kept(made))

    alike = names(models={"other": {"targets": ["lab:big"], "drafts": ["ngram"], "policy": "cost"}})
    assert names().id == alike.id
    for changes in (
        {"providers": {"lab": {"profile": "vllm", "base_url": "http://10.0.0.6/v1"}}},
        {"providers": {"lab": {"profile": "sglang", "base_url": "http://10.0.0.5/v1"}}},
        {"models": {"smart": {"targets": ["lab:other"], "drafts": ["ngram"]}}},
        {"drafts": {"more": {"kind": "local", "model": "org/small"}}},
    ):
        assert names(**changes).id != names().id
    one, two = {"kind": "local", "model": "org/small"}, {"kind": "local", "model": "org/small"}
    assert names(drafts={"a": one, "b": two}).id == names(drafts={"c": one}).id
    half = names(drafts={"a": one, "b": {**two, "dtype": "float16"}})
    assert half.id != names(drafts={"c": one}).id
    assert half.draft_places["a"] != half.draft_places["b"]
    elsewhere = names(store={"kind": "redis", "url": "redis://x/0", "host": "eu-1"})
    assert elsewhere.id == names().id and elsewhere.host != names().host

"""Rounds in flight: which answer is judged, what a rejection cancels, and what it brings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from specroute.candidates import Judge
from specroute.context import Committed
from specroute.draft.base import Proposal
from specroute.errors import ConnectFailed
from specroute.method.flight import ALONE, Flights, Settled
from specroute.reference.running import ReferenceServer
from specroute.target.view import Position, View
from specroute.types import Usage
from tests.engine.answers import EchoDrafter, ask, script
from tests.engine.test_exits import LONG, quiet, until
from tests.engine.world import World, speculating

pytestmark = pytest.mark.alone


@dataclass
class Desk:
    """A session as rounds in flight see it: drafts 0, 1, 2 … and lets the test answer requests."""

    judge: Judge = Judge.RULES
    k: int = 2
    greedy: bool = False
    sent: list[tuple[tuple[int, ...], tuple[int, ...], asyncio.Future[View]]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self.answer = SimpleNamespace(ids=[], text="", remaining=None, finish=None)
        self.request = SimpleNamespace(greedy=self.greedy)
        words = SimpleNamespace(decode=lambda ids: "".join(f"{i} " for i in ids))
        self.target = SimpleNamespace(learned=SimpleNamespace(vocabulary=words))
        self.top_n = 5

    def clock(self) -> float:
        return 0.0

    def next_k(self) -> int:
        return self.k

    async def draft(
        self, k: int, *, greedy: bool, after: Committed | None = None, ask: bool = True
    ) -> Proposal:
        at = len(self.answer.ids if after is None or after.ids is None else after.ids)
        return Proposal("x", tuple(range(at, at + k)))

    async def score(self, draft: Any, *, logprobs: int, after: Committed) -> View:
        answer: asyncio.Future[View] = asyncio.get_running_loop().create_future()
        self.sent.append((after.ids or (), tuple(draft), answer))
        return await answer

    def reply(self, i: int) -> None:
        _, draft, answer = self.sent[i]
        positions = tuple(Position(token, -0.1, ()) for token in draft)
        answer.set_result(View(positions, (99,), None, Usage(), 0.0))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def begun(depth: int = 3, **options: Any) -> tuple[Desk, Flights, asyncio.Task[Any]]:
    desk = Desk(**options)
    made: Any = desk
    flights = Flights(made, depth)
    first = asyncio.create_task(flights.next())
    await settle()
    return desk, flights, first


async def test_rounds_leave_before_the_first_is_back() -> None:
    """As many as may; each carries all that is undecided."""
    desk, flights, first = await begun()
    assert [draft for _, draft, _ in desk.sent] == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
    desk.reply(0)
    scored = await first
    assert (scored.proposal.ids, len(scored.view.positions)) == ((0, 1), 2)
    assert flights.settled(2, 2, (99,)).goes_on  # the next round guessed what follows
    await flights.aclose()


async def test_a_drawn_token_keeps_its_q_before_tokens_that_were_not_drawn() -> None:
    """Else what becomes of it would depend on what was drafted after it."""
    desk = Desk()
    drafted = desk.draft

    async def draft(k: int, **asked: Any) -> Proposal:
        proposal = await drafted(k, **asked)
        assert proposal.ids is not None
        drawn = proposal.ids[0] == 0
        return replace(proposal, q=tuple({i: 0.5} for i in proposal.ids) if drawn else None)

    desk.draft = draft  # type: ignore[method-assign]
    made: Any = desk
    flights = Flights(made, 2)
    first = asyncio.create_task(flights.next())
    await settle()
    desk.reply(1)
    assert (await first).proposal.q == ({0: 0.5}, {1: 0.5}, None, None)
    await flights.aclose()


async def test_a_later_answer_covers_the_earlier_ones() -> None:
    """It is judged whole when it comes first, and for what is undecided when it comes later."""
    desk, flights, first = await begun()
    desk.reply(1)
    scored = await first
    assert scored.proposal.ids == (0, 1, 2, 3)
    assert desk.sent[0][2].cancelled()
    assert flights.settled(4, 4, ()).goes_on
    desk.answer.ids = [0, 1, 2, 3]
    desk.reply(2)
    scored = await flights.next()
    assert scored.proposal.ids == (4, 5)
    assert [p.key for p in scored.view.positions] == [4, 5]
    await flights.aclose()


async def test_a_rejection_cancels_what_was_built_on_it() -> None:
    """And the next round goes on from the correction."""
    desk, flights, first = await begun()
    desk.reply(0)
    await first
    assert flights.settled(1, 2, (7,)) == ALONE
    desk.answer.ids = [0, 7]
    following = asyncio.create_task(flights.next())
    await settle()
    assert all(answer.cancelled() for _, _, answer in desk.sent[1:3])
    assert desk.sent[3][1] == (2, 3)
    desk.reply(3)
    assert (await following).proposal.ids == (2, 3)
    await flights.aclose()


async def test_at_temperature_0_the_bonus_settles_the_guess() -> None:
    """Where it is another token, what was built on the guess is cancelled and the bonus stands."""
    desk, flights, first = await begun(greedy=True)
    desk.reply(0)
    await first
    assert flights.settled(2, 2, (2,)).goes_on
    desk.answer.ids = [0, 1]
    assert flights.settled(2, 2, (99,)) == Settled(False, 2, refuted=True)
    await settle()
    assert desk.sent[1][2].cancelled()
    await flights.aclose()


async def test_each_round_is_told_where_it_takes_up_its_run() -> None:
    """After what was accepted since the target last had its own way."""
    _, flights, first = await begun()
    first.cancel()
    starts = [flights.settled(n, 2, ()).start for n in (2, 2, 1, 1)]
    assert starts == [0, 2, 4, 0]
    await flights.aclose()


async def test_draws_are_asked_for_once_and_judged_in_order() -> None:
    """Each round has its own tokens; one that comes early waits."""
    desk, flights, first = await begun(judge=Judge.DRAWS)
    assert [(before, draft) for before, draft, _ in desk.sent] == [
        ((), (0, 1)), ((0, 1), (2, 3)), ((0, 1, 2, 3), (4, 5))
    ]  # fmt: skip
    desk.reply(1)
    await settle()
    assert not first.done()
    desk.reply(0)
    assert (await first).proposal.ids == (0, 1)
    await flights.aclose()


async def test_a_request_that_fails_is_covered_by_a_later_one() -> None:
    """Only where none is left does its error count."""
    desk, flights, first = await begun(depth=2)
    desk.sent[0][2].set_exception(ConnectFailed("gone", provider="lab"))
    await settle()
    assert not first.done()
    desk.reply(1)
    assert (await first).proposal.ids == (0, 1, 2, 3)
    await flights.aclose()
    desk, flights, first = await begun(depth=1)
    desk.sent[0][2].set_exception(ConnectFailed("gone", provider="lab"))
    with pytest.raises(ConnectFailed):
        await first
    await flights.aclose()


def policy(depth: int, k: int = 4) -> dict[str, Any]:
    return {"preset": "fixed", "method": "score", "num_speculative_tokens": k,
            "rounds_in_flight": depth}  # fmt: skip


@pytest.mark.parametrize("wrong", [0.0, 0.3])
async def test_the_answer_and_its_usage_are_the_plain_ones(wrong: float) -> None:
    """Also with max_tokens; nothing is left under way."""
    spec = script()
    with ReferenceServer(spec, pace="tpot=2ms,rtt=6ms") as server:
        drafter = EchoDrafter(spec, wrong=wrong)
        async with speculating(World(spec), server, drafter=drafter, policy=policy(3, 2)) as client:
            await client.warm_up()
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            for body in ({}, {"max_tokens": 7}, {"max_tokens": 1}, {"stop": "fox"}):
                expected, got = await ask(plain, **body), await ask(client, **body)
                assert got.content == expected.content, body
                assert got.report is not None
                assert got.report.exactness == "exact-greedy"
            await quiet(server)
    assert not drafter.open_sessions


async def test_far_away_rounds_in_flight_hide_the_distance_and_never_cost_time() -> None:
    """A round trip of 80 ms: with a good draft the answer comes sooner than one round at a time,
    with a useless one no later."""
    spec = script(LONG[:420])
    seconds: dict[tuple[float, int], float] = {}
    with ReferenceServer(spec, pace="tpot=5ms,rtt=80ms") as server:
        for wrong in (0.0, 1.0):
            drafter = EchoDrafter(spec, wrong=wrong)
            async with speculating(
                World(spec), server, drafter=drafter, policy=policy(4, 8)
            ) as client:
                await client.warm_up()
                one = client.with_options(policy=policy(1, 8))
                limit = {"max_tokens": 60 if wrong == 0 else 8}
                for depth, asked in ((4, client), (1, one)) * 2:
                    got = await ask(asked, **limit)
                    assert got.report is not None
                    took = got.report.total_s or 9.0
                    seconds[wrong, depth] = min(seconds.get((wrong, depth), 9.0), took)
    assert seconds[0.0, 4] < 0.6 * seconds[0.0, 1]
    assert seconds[1.0, 4] < 1.15 * seconds[1.0, 1]


async def test_closing_the_stream_ends_every_round() -> None:
    """Within 100 ms, and all of them are booked."""
    spec = script(LONG)
    with ReferenceServer(spec, pace="tpot=5ms,rtt=60ms") as server:
        async with speculating(
            World(spec), server, drafter=EchoDrafter(spec), policy=policy(4)
        ) as client:
            await client.warm_up()
            before = asyncio.all_tasks()
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "go"}], temperature=0, stream=True
            )
            async for _ in stream:
                break
            await until(lambda: len(server.log) > 4)
            await stream.close()
            assert not {t for t in asyncio.all_tasks() - before if not t.done()}
            await quiet(server)

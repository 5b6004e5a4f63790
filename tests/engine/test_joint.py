"""Scoring rounds that leave together share one request, and nobody is worse off for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from specroute.book import Book
from specroute.config import ProviderConfig, Timeouts
from specroute.context import Committed, Prompt
from specroute.errors import ConnectFailed, DeadlineExceeded, StatusError
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.http.gate import Departure
from specroute.limits.estimate import estimate
from specroute.limits.purse import Purse, held
from specroute.profiles import capabilities_for, load_profile
from specroute.reference.running import ReferenceServer
from specroute.target import joint
from specroute.target.calibration import calibrate
from specroute.target.scoring import score
from specroute.target.target import Target
from specroute.target.view import View
from specroute.types import TargetRef, Usage
from tests.engine.world import World, chain, speculating
from tests.support.proxy import Fault, Proxy

LONG = Timeouts(connect=20, first_token=20, stall=20, total=20, idle=0)
DIALECTS = ("echo", "prompt_logprobs", "generate", "fanout")


class Recording:
    """A gate that lets everything pass and remembers it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.settled: list[Usage | None] = []

    async def enter(self, departure: Departure) -> Recording:
        prompt = estimate(departure.content).prompt
        self.calls.append((departure.purpose, departure.model, prompt))
        return self

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        self.settled.append(usage)


@asynccontextmanager
async def target_at(
    world: World, url: str, dialect: str = "echo", gates: Sequence[Any] = ()
) -> AsyncIterator[Target]:
    """A calibrated target whose rounds may share requests."""
    caps = capabilities_for(load_profile("reference"), None, "chain")
    caps = replace(caps, score=(dialect,), joint_rounds=True)
    http = HttpClient(ProviderConfig("lab", "reference", url), gates=gates)
    target = Target(TargetRef("lab", "chain"), http, caps)
    await calibrate(target, [world.vocabulary], Book(), Deadline(LONG))
    try:
        yield target
    finally:
        await http.aclose()


def rounds(world: World, count: int, spread: int = 3) -> list[tuple[tuple[int, ...], ...]]:
    """(prompt, draft) of some rounds, each of its own length."""
    at = [world.script.encode(text, False) for text in ("abc", "ba", "deaf", "c")]
    found = []
    for n in range(count):
        prompt = tuple(token for i in range(1 + n % spread) for token in at[(n + i) % len(at)])
        found.append((prompt, tuple(at[n % len(at)][: 1 + n % 2])))
    return found


async def ask(
    target: Target,
    round_: tuple[tuple[int, ...], ...],
    *,
    book: Book | None = None,
    timeouts: Timeouts = LONG,
    temperature: float = 0,
) -> View:
    using = target.learned.dialect or target.learned.sampler
    assert using is not None, target.learned.reason
    return await score(
        target, using, Prompt(None, None, round_[0]), Committed("", ()), round_[1], logprobs=2,
        sampling={"temperature": temperature}, book=book or Book(), deadline=Deadline(timeouts),
    )  # fmt: skip


def bare(view: View) -> View:
    """Without what depends on how it came: time, and what was in the server's cache."""
    return replace(view, seconds=0, usage=replace(view.usage, cached_tokens=None))


@pytest.fixture(scope="module")
def world() -> World:
    return World(chain(end=0.0))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_rounds_of_one_turn_share_a_request_and_see_the_same(
    world: World, dialect: str
) -> None:
    """Every view is the one that the round gets by itself, and the bill is divided to the token."""
    asked = rounds(world, 9)
    with ReferenceServer(world.spec) as server:
        async with target_at(world, server.base_url, dialect) as target:
            assert target.learned.joins == {dialect}
            alone = [await ask(target, each) for each in asked]
            assert target.joint.requests == 0
            before = len(server.log)
            books = [Book() for _ in asked]
            views = await asyncio.gather(
                *(ask(target, each, book=book) for each, book in zip(asked, books, strict=True))
            )
        (record,) = server.log[before:]
    assert [*map(bare, views)] == [*map(bare, alone)]
    assert (target.joint.requests, target.joint.rounds) == (1, 9)
    lines = [line for book in books for line in book.attempts]
    assert [line.outcome for line in lines] == ["ok"] * 9
    assert sum(line.usage.prompt_tokens or 0 for line in lines) == record.prompt_tokens
    assert sum(line.usage.completion_tokens or 0 for line in lines) == record.completion_tokens
    assert len({line.request_id for line in lines}) == 1


async def test_a_lone_round_leaves_by_itself(world: World) -> None:
    """One at a time there is nothing to share, and no list is sent."""
    with ReferenceServer(world.spec) as server:
        async with target_at(world, server.base_url) as target:
            before = len(server.log)
            for each in rounds(world, 3):
                await ask(target, each)
        assert [record.prompts for record in server.log[before:]] == [1, 1, 1]


async def test_only_rounds_that_are_alike_go_together(world: World) -> None:
    """Other sampling, another request; a request with a budget of its own goes by itself."""
    one, two, three, four, five = rounds(world, 5)

    async def paid(target: Target, each: tuple[tuple[int, ...], ...]) -> View:
        with held(Purse(1.0, 0.1)):
            return await ask(target, each)

    with ReferenceServer(world.spec) as server:
        async with target_at(world, server.base_url) as target:
            before = len(server.log)
            await asyncio.gather(
                ask(target, one),
                ask(target, two),
                ask(target, three, temperature=1),
                ask(target, four, temperature=1),
                paid(target, five),
            )
        assert sorted(record.prompts for record in server.log[before:]) == [1, 2, 2]


async def test_a_request_has_no_more_prompts_than_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest go in further ones."""
    monkeypatch.setattr(joint, "MOST_PROMPTS", 4)
    with ReferenceServer(world.spec) as server:
        async with target_at(world, server.base_url) as target:
            before = len(server.log)
            await asyncio.gather(*(ask(target, each) for each in rounds(world, 9)))
            monkeypatch.setattr(joint, "MOST_BYTES", 1)
            await asyncio.gather(*(ask(target, each) for each in rounds(world, 2)))
        assert sorted(record.prompts for record in server.log[before:]) == [1, 1, 1, 4, 4]


@pytest.mark.parametrize(
    ("quirk", "joins"),
    [("answers_unordered", True), ("answers_misnumbered", False), ("first_prompt_only", False)],
)
@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs"])
async def test_only_a_server_that_tells_answers_apart_gets_lists(
    world: World, quirk: str, joins: bool, dialect: str
) -> None:
    """Calibration sees it, with one call; scoring itself goes on."""
    with ReferenceServer(world.spec, quirks=[quirk]) as server:
        async with target_at(world, server.base_url, dialect) as target:
            assert target.learned.dialect is not None
            assert bool(target.learned.joins) is joins
            asked = rounds(world, 4)
            alone = [await ask(target, each) for each in asked]
            together = await asyncio.gather(*(ask(target, each) for each in asked))
    assert [*map(bare, together)] == [*map(bare, alone)]
    assert bool(target.joint.requests) is joins


def after_calibration(fault: Fault) -> Any:
    """A judge: lists of more than one prompt meet ``fault``, but for calibration's."""

    def judge(path: str, body: Mapping[str, Any], _: int) -> Fault | None:
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        if not (several and judge.armed):  # type: ignore[attr-defined]
            return None
        judge.met.set()  # type: ignore[attr-defined]
        return fault

    judge.armed = False  # type: ignore[attr-defined]
    judge.met = asyncio.Event()  # type: ignore[attr-defined]
    return judge


@asynccontextmanager
async def behind(
    world: World, fault: Fault
) -> AsyncIterator[tuple[Target, Proxy, ReferenceServer]]:
    judge = after_calibration(fault)
    with ReferenceServer(world.spec) as server:
        async with (
            Proxy(server.base_url.removesuffix("/v1"), judge) as proxy,
            target_at(world, proxy.base_url) as target,
        ):
            judge.armed = True
            yield target, proxy, server


def _first_only(data: Any) -> None:
    del data["choices"][1:]
    data["usage"] = {"prompt_tokens": 7, "completion_tokens": 1}


def _swapped(data: Any) -> None:
    one, two = data["choices"][:2]
    one["index"], two["index"] = two["index"], one["index"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=400),
        Fault("status", status=413),
        Fault("status", status=500),
        Fault("edit", value=_first_only),
        Fault("edit", value=_swapped),
        Fault("text", value="[]"),
    ],
    ids=["400", "413", "500", "first only", "swapped", "a list"],
)
async def test_who_was_not_answered_asks_by_itself(world: World, fault: Fault) -> None:
    """Nobody fails, and in the end nothing is sent jointly any more."""
    asked = rounds(world, 3)
    async with behind(world, fault) as (target, _, _):
        alone = [await ask(target, each) for each in asked]
        for _ in range(joint.REFUSALS):
            books = [Book() for _ in asked]
            views = await asyncio.gather(
                *(ask(target, each, book=book) for each, book in zip(asked, books, strict=True))
            )
            assert [(v.positions, v.bonus) for v in views] == [
                (v.positions, v.bonus) for v in alone
            ]
            assert all(1 <= len(book.attempts) <= 2 for book in books)
            assert all(book.attempts[-1].outcome == "ok" for book in books)
        sent = target.joint.requests
        assert target.joint.off or fault.status in (400, 413)
        await asyncio.gather(*(ask(target, each) for each in asked))
        assert target.joint.requests == sent <= joint.REFUSALS


async def test_what_a_shared_request_was_billed_is_booked_once(world: World) -> None:
    """By the round that it answered; the others' second lines are what they used themselves."""
    asked = rounds(world, 3)
    async with behind(world, Fault("edit", value=_first_only)) as (target, _, _):
        books = [Book() for _ in asked]
        await asyncio.gather(
            *(ask(target, each, book=book) for each, book in zip(asked, books, strict=True))
        )
    lines = [[(line.outcome, line.usage.prompt_tokens) for line in b.attempts] for b in books]
    assert lines[0] == [("ok", 7)]
    assert [found[0] for found in lines[1:]] == [("BadAnswer", 0)] * 2
    assert [found[1] for found in lines[1:]] == [("ok", sum(map(len, e))) for e in asked[1:]]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_host_that_wants_to_be_left_alone_is(world: World, status: int) -> None:
    """Its answer is everybody's, as it would have been; nobody asks again."""
    async with behind(world, Fault("status", status=status)) as (target, proxy, _):
        before = len(proxy.asked)
        found = await asyncio.gather(
            *(ask(target, each) for each in rounds(world, 4)), return_exceptions=True
        )
        assert [isinstance(e, StatusError) and e.status for e in found] == [status] * 4
        assert len(proxy.asked) - before == 1
        assert not target.joint.off


async def test_a_server_of_short_lists_gets_short_ones(world: World) -> None:
    """It refuses more than three prompts at once: that is asked for once, not by every crowd."""
    asked = rounds(world, 6, spread=1)
    with ReferenceServer(world.spec) as server:

        def judge(path: str, body: Mapping[str, Any], _: int) -> Fault | None:
            prompts = body.get("prompt")
            several = isinstance(prompts, list) and not isinstance(prompts[0], int)
            return Fault("status", status=400) if several and len(prompts) > 3 else None

        async with (
            Proxy(server.base_url.removesuffix("/v1"), judge) as proxy,
            target_at(world, proxy.base_url) as target,
        ):
            alone = [await ask(target, each) for each in asked]
            await asyncio.gather(*(ask(target, each) for each in asked))
            before = len(server.log)
            for _ in range(joint.REFUSALS + 1):
                views = await asyncio.gather(*(ask(target, each) for each in asked))
                assert [*map(bare, views)] == [*map(bare, alone)]
        assert not target.joint.off
        sizes = [record.prompts for record in server.log[before:]]
        assert max(sizes) in (2, 3)
        assert sum(sizes) == (joint.REFUSALS + 1) * len(asked)


async def test_each_limit_of_a_shared_request_is_the_last_of_its_rounds(world: World) -> None:
    """One round has more time in all, the other more to its first token."""
    one, two = rounds(world, 2)
    with ReferenceServer(world.spec, pace="ttft=0.5") as server:
        async with target_at(world, server.base_url) as target:
            soon = replace(LONG, first_token=0.2, total=20)
            late = replace(LONG, first_token=5, total=5)
            found = await asyncio.gather(
                ask(target, one, timeouts=soon), ask(target, two, timeouts=late),
                return_exceptions=True,
            )  # fmt: skip
            assert isinstance(found[0], DeadlineExceeded)
            assert isinstance(found[1], View)
            assert target.joint.requests == 1


async def test_one_that_leaves_or_runs_out_of_time_takes_nobody_along(world: World) -> None:
    """Its own wait ends; the others are answered, and the request goes on as long as one waits."""
    asked = rounds(world, 4)
    with ReferenceServer(world.spec, pace="ttft=0.6") as server:
        async with target_at(world, server.base_url) as target:
            soon = replace(LONG, first_token=0.2, total=0.2)
            book = Book()
            tasks = [
                asyncio.ensure_future(ask(target, asked[0])),
                asyncio.ensure_future(ask(target, asked[1], timeouts=soon)),
                asyncio.ensure_future(ask(target, asked[2], book=book)),
                asyncio.ensure_future(ask(target, asked[3])),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert done == {tasks[1]}
            tasks[2].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found[1], DeadlineExceeded)
            assert found[1].seconds == 0.2
            assert isinstance(found[2], asyncio.CancelledError)
            assert book.attempts[0].estimated
            assert isinstance(found[0], View)
            assert isinstance(found[3], View)
            assert target.joint.requests == 1


async def test_a_request_that_nobody_waits_for_is_ended(world: World) -> None:
    """When the last of its rounds has left, it is of no use."""
    async with behind(world, Fault("hang")) as (target, proxy, _):
        tasks = [asyncio.ensure_future(ask(target, each)) for each in rounds(world, 3)]
        await proxy.judge.met.wait()  # type: ignore[attr-defined]
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.wait(tasks[:2])
        assert target.http.supervisor.running == 1
        tasks[2].cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert target.http.supervisor.running == 0


async def test_closing_the_client_is_no_callers_own_cancellation(world: World) -> None:
    """Who waits is told that there is no connection any more."""
    async with behind(world, Fault("hang")) as (target, proxy, _):
        tasks = [asyncio.ensure_future(ask(target, each)) for each in rounds(world, 2)]
        await proxy.judge.met.wait()  # type: ignore[attr-defined]
        await target.http.supervisor.aclose()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [ConnectFailed] * 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_gates_see_one_call_with_everybodys_tokens(world: World, dialect: str) -> None:
    """What a limit counts: a request, whose model's it is, and the sum of its prompts."""
    gate = Recording()
    asked = rounds(world, 5)
    with ReferenceServer(world.spec) as server:
        async with target_at(world, server.base_url, dialect, [gate]) as target:
            gate.calls.clear()
            gate.settled.clear()
            views = await asyncio.gather(*(ask(target, each) for each in asked))
        record = server.log[-1]
    assert gate.calls == [("score", "chain", record.prompt_tokens)]
    assert sum(view.usage.prompt_tokens or 0 for view in views) == record.prompt_tokens
    (usage,) = gate.settled
    assert usage is not None
    assert usage.prompt_tokens == record.prompt_tokens


async def test_draws_of_a_shared_request_are_each_its_own() -> None:
    """The same question often at T = 1: a server that drew once for all would say one thing."""
    world = World()
    with ReferenceServer(world.spec, seed=5) as server:
        async with target_at(world, server.base_url, "fanout") as target:
            same = (tuple(world.script.encode("a", False)), ())
            views = await asyncio.gather(*(ask(target, same, temperature=1) for _ in range(64)))
            assert target.joint.requests >= 1
    assert len({view.samples[0].tokens for view in views}) > 5


async def test_answers_are_identical_with_it_on_and_off() -> None:
    """Many at once, greedy and seeded: every text, whoever shared a request with whom."""
    world = World()

    async def answers(joined: bool) -> tuple[list[str], int]:
        with ReferenceServer(world.spec) as server:
            caps = {"score": ["echo"], "joint_rounds": joined}
            async with speculating(world, server, provider={"capabilities": caps}) as client:

                async def one(n: int) -> str:
                    sampling: dict[str, Any] = {"temperature": 0}
                    if n % 3 == 2:
                        sampling = {"temperature": 1, "seed": n}
                    found = await client.chat.completions.create(
                        model="m",
                        messages=[{"role": "user", "content": "abcdefghij"[: 1 + n % 10]}],
                        max_tokens=24,
                        **sampling,
                    )
                    return found.choices[0].message.content or ""

                await one(0)
                texts = await asyncio.gather(*map(one, range(24)))
                (target,) = client.router.speculation.pool.targets.values()
                return texts, target.joint.rounds

    on, off = await answers(True), await answers(False)
    assert on[0] == off[0]
    assert on[1] > 20
    assert off[1] == 0

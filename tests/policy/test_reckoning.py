"""What plain would have taken for the very answer stands in its report, and losses are booked,
however a request ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import openai
import pytest

from specroute import Report, report
from specroute.candidates import PLAIN, Candidates
from specroute.measure import Snapshot
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, Figures, Forecast, Plan, RoundView
from specroute.reference.running import ReferenceServer
from specroute.types import Method
from tests.engine.answers import EchoDrafter, script
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Judge, Proxy

pytestmark = pytest.mark.alone

LONG = " ".join(["one, two, three, four; six."] * 12)
TPOT_S = 0.01
PRICES = {"input": 1.0, "output": 4.0}
FREE = {"input": 0.0, "output": 0.0}
BOOKED: list[tuple[Plan, Forecast, Forecast]] = []
"""What was settled: the plan, what was spent, what plain would have."""


class Always(Adaptive):
    """Rounds of two, whatever is measured, and an account that is only looked at."""

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        figures(PLAIN)  # The yardstick, as it is now.
        return Plan(Method.SCORE, "table", 2, "a test's")

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        return 2

    def settle(self, account: Account, plan: Plan, spent: Forecast, plain: Forecast) -> Account:
        BOOKED.append((plan, spent, plain))
        return account


@pytest.fixture(autouse=True)
def nothing_booked() -> Iterator[None]:
    BOOKED.clear()
    yield
    BOOKED.clear()


@asynccontextmanager
async def speculated(
    judge: Judge | None = None, *, wrong: float = 0.0, **provider: Any
) -> AsyncIterator[Any]:
    """A client that always drafts, at a target of known pace that is measured already."""
    world = World(script(LONG))
    with ReferenceServer(world.spec, pace=f"tpot={TPOT_S}s") as server:
        async with (
            Proxy(server.base_url, judge or (lambda path, body, n: None)) as proxy,
            speculating(
                world,
                server,
                drafter=EchoDrafter(world.spec, wrong=wrong),
                policy={"preset": f"{__name__}:Always"},
                provider={"prices": PRICES, "base_url": proxy.base_url, **provider},
                max_retries=0,
            ) as client,
        ):
            await client.warm_up()
            seen = client.router.speculation.measurements
            seen.pace("lab:chain", "", ttft_s=TPOT_S, tpot_s=TPOT_S, tokens=400)
            yield client


async def begin(client: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": "go"}]
    return await client.chat.completions.create(model="m", messages=messages, temperature=0, **more)


class Breaks:
    """``fault`` for whatever is asked once the request at hand had four rounds."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault, self.rounds = fault, 0
        self.begun = False
        self.reached = asyncio.Event()

    def __call__(self, path: str, body: Any, n: int) -> Fault | None:
        self.rounds += self.begun and body.get("echo") is True
        if self.rounds <= 4:
            return None
        self.reached.set()
        return self.fault


def near(found: float | None, wanted: float) -> bool:
    return found is not None and 0.5 * wanted < found < 2 * wanted


async def test_a_cut_answer_is_booked_for_the_part_that_came() -> None:
    """Its caller left the stream after some tokens: plain would have taken as many TPOTs."""
    async with speculated() as client:
        stream = await begin(client, stream=True)
        async with aclosing(stream.__aiter__()) as chunks:
            async for chunk in chunks:
                if chunk.choices and "six" in (chunk.choices[0].delta.content or ""):
                    break
        await stream.close()
        told = report(stream)
    assert (told.complete, told.method) == (False, "score")
    assert told.completion_tokens is not None
    ((plan, spent, plain),) = BOOKED
    assert plan.method is Method.SCORE
    assert told.total_s is not None
    assert told.cost_usd is not None
    assert 0 < spent.seconds <= told.total_s
    assert spent.dollars == told.cost_usd
    assert near(plain.seconds, told.completion_tokens * TPOT_S)
    assert (told.plain_s, told.plain_usd) == (plain.seconds, plain.dollars)
    usd = (told.completion_tokens * 4.0 + (told.prompt_tokens or 0) * 1.0) / 1e6
    assert told.plain_usd == pytest.approx(usd)


async def test_a_cancelled_request_is_booked_too() -> None:
    """One that isn't streamed; its drafts were all wrong, so it had lost against plain."""
    some = Breaks(None)
    async with speculated(some, wrong=1.0) as client:
        some.begun = True
        asking = asyncio.create_task(begin(client))
        await some.reached.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    ((_, spent, plain),) = BOOKED
    assert spent.seconds > plain.seconds > 0
    assert spent.dollars is not None
    assert plain.dollars is not None
    assert spent.dollars > plain.dollars


async def test_a_deadline_in_the_middle_is_booked_to_the_last_text() -> None:
    """The target fell silent: the wait is not the plan's doing."""
    limits = {"connect": 5, "first_token": 3, "stall": 1.5, "total": 20}
    silent = Breaks(Fault("hang"))
    async with speculated(silent, timeouts=limits) as client:
        silent.begun = True
        stream = await begin(client, stream=True)
        with pytest.raises(openai.APITimeoutError):
            async for _ in stream:
                pass
        told = report(stream)
    assert told.total_s is not None
    ((_, spent, plain),) = BOOKED
    assert 0 < spent.seconds < told.total_s - 1.5
    assert near(plain.seconds, (told.completion_tokens or 0) * TPOT_S)


async def test_nor_is_it_where_nothing_had_left() -> None:
    """Not streamed, the request was made anew and in vain: its rounds are lost, and no more."""
    broken = Breaks(Fault("reset"))
    async with speculated(broken) as client:
        broken.begun = True
        with pytest.raises(openai.APIConnectionError):
            await begin(client)
    ((_, spent, plain),) = BOOKED
    assert 0 < plain.seconds < 3 * TPOT_S
    assert spent.seconds > plain.seconds


async def test_a_fault_midway_is_booked_to_the_last_text() -> None:
    """Scoring and the stream that would have gone on break: an error, and the part that came."""
    broken = Breaks(Fault("reset"))
    async with speculated(broken) as client:
        broken.begun = True
        stream = await begin(client, stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        told = report(stream)
    assert told.error
    ((_, spent, plain),) = BOOKED
    assert told.completion_tokens is not None
    assert near(plain.seconds, told.completion_tokens * TPOT_S)
    assert spent.seconds < (told.total_s or 0.0)


async def test_retries_of_the_plain_call_are_not_the_plans_loss() -> None:
    """Nothing could be scored and plain was refused once: only what came before it is lost."""
    failed = 0

    def refused(path: str, body: Any, n: int) -> Fault | None:
        nonlocal failed
        if not path.endswith("completions"):
            return None
        if body.get("echo"):
            return Fault("status", 503) if broken else None
        failed += broken
        return Fault("status", 503) if broken and failed == 1 else None

    broken = False
    async with speculated(refused) as client:
        broken = True
        told = report(await begin(client.with_options(max_retries=2)))
    assert (told.complete, told.method) == (True, "plain")
    assert [call.outcome for call in told.attempts if call.purpose == "plain"] == [
        "status 503",
        "ok",
    ]
    ((plan, spent, plain),) = BOOKED
    assert plan.method is Method.SCORE
    assert told.total_s is not None
    assert told.total_s > plain.seconds + 0.25  # It waited before it asked again.
    assert spent.seconds < plain.seconds + 0.25


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "score": {"method": "score"},
    "handed over": {"method": "score", "max_rounds": 1},
    "in flight": {"method": "score", "rounds_in_flight": 3},
    "prefix": {"method": "prefix"},
    "predict": {"method": "predict"},
    "cascade": {"method": "cascade"},
    "race": {"method": "race", "exactness": "heuristic"},
}


async def one(kind: str, prices: Any, **more: Any) -> Report:
    world = World(script(LONG))
    policy = {"preset": "fixed", "num_speculative_tokens": 8, **KINDS[kind]}
    provider = {"capabilities": {}, **({} if prices is None else {"prices": prices})}
    with ReferenceServer(world.spec, pace=f"tpot={TPOT_S}s") as server:
        async with speculating(
            world,
            server,
            drafter=EchoDrafter(world.spec, wrong=0.1),
            policy=policy,
            provider=provider,
        ) as client:
            await client.warm_up()
            answer = await begin(client, max_tokens=40, **more)
            if more.get("stream"):
                async for _ in answer:
                    pass
            return report(answer)


@pytest.mark.parametrize(
    ("kind", "prices"),
    [
        *((kind, PRICES) for kind in KINDS),
        *((kind, prices) for kind in ("plain", "score") for prices in (FREE, None)),
    ],
)
async def test_every_kind_of_report_says_what_plain_would_have_taken(
    kind: str, prices: Any
) -> None:
    """For the tokens that came; dollars where prices are known, 0 where they are 0."""
    told = await one(kind, prices, stream=prices is PRICES)
    assert told.complete
    tokens = told.completion_tokens
    assert tokens
    assert told.plain_s is not None
    assert told.plain_s > 0.7 * tokens * TPOT_S
    if prices is None:
        assert (told.plain_usd, told.cost_usd) == (None, None)
    else:
        # Where the target's own stream was cut short nobody has counted the prompt's tokens.
        prompt = told.prompt_tokens or 0
        usd = (prompt * prices["input"] + tokens * prices["output"]) / 1e6
        assert told.plain_usd == pytest.approx(usd)
    if kind == "plain":
        assert told.plain_usd == told.cost_usd


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}],
)
async def test_what_is_passed_through_is_compared_with_nothing(more: dict[str, Any]) -> None:
    """It is a plain call, and nothing was planned for it."""
    told = await one("score", PRICES, **more)
    assert (told.method, told.plain_s, told.predicted_s) == ("plain", None, None)
    assert told.cost_usd is not None

"""Speculation under limits: its extra calls count, and where there is no room it goes plain."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from specroute import report, reports
from specroute.errors import DeadlineExceeded
from specroute.reference.access_log import Record
from specroute.reference.running import ReferenceServer
from specroute.store.window import DAY, MINUTE, Want
from tests.engine.world import World, speculating
from tests.limits.test_limits import used

PRICES = {"input": 1.0, "output": 4.0}


async def ask(client: Any, **specroute: Any) -> Any:
    return await client.completions.create(
        model="m",
        prompt="a b c",
        max_tokens=40,
        temperature=0,
        extra_body={"specroute": {"seed": 1, **specroute}},
    )


def native(server: ReferenceServer) -> list[Record]:
    return [record for record in server.log if record.path == "/generate"]


@pytest.fixture
def world() -> World:
    return World()


async def test_every_round_counts(world: World) -> None:
    """Calls, tokens and dollars of all attempts are what the store holds."""
    limits = {"rpm": 10_000, "tpm": 10_000_000}
    with ReferenceServer(world.spec) as server:
        async with speculating(
            world, server, provider={"limits": limits, "prices": PRICES}
        ) as client:
            found = report(await ask(client))
            calls = [a for a in found.attempts if a.purpose != "render"]
            assert found.rounds > 1
            assert await used(client, "lab/rpm") == len(calls)
            billed = (found.billed_prompt_tokens or 0) + (found.billed_completion_tokens or 0)
            assert await used(client, "lab/tpm") == billed


@pytest.mark.parametrize("dialect", ["echo", "generate", "prompt_logprobs", "fanout"])
async def test_every_rounds_dollars_count(world: World, dialect: str) -> None:
    """What all attempts cost is what the day's budget holds, by whichever body a draft is asked
    about: SGLang's own names no model and counts elsewhere."""
    provider = {
        "limits": {"tpm": 10_000_000},
        "prices": PRICES,
        "capabilities": {"score": [dialect]},
    }
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, provider=provider, daily_usd=10) as client:
            found = report(await ask(client))
            assert found.rounds > 1
            assert found.cost_usd is not None
            assert await used(client, "usd") == pytest.approx(found.cost_usd)
            billed = (found.billed_prompt_tokens or 0) + (found.billed_completion_tokens or 0)
            assert await used(client, "lab/tpm") == billed


async def test_a_spent_day_lets_no_native_round_leave(world: World) -> None:
    """Where only a plain answer's dollars are left of the day, no round leaves by SGLang's own body
    either, and the answer goes on plain."""
    provider = {"prices": PRICES, "capabilities": {"score": ["generate"]}}
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, provider=provider, daily_usd=0.002) as client:
            assert report(await ask(client)).rounds > 1
            store = client._seam.connections._store
            left = 0.0002 - 1e-5
            filled = Want("usd", 0.002 - left - await used(client, "usd"), 0.002, DAY)
            assert await store.take([filled], time.time()) is None
            before = len(native(server))
            tight = report(await ask(client))
            assert tight.complete
            assert "budgets.daily.usd" in " ".join((tight.plan_reason, *tight.notes))
            assert len(native(server)) == before


async def test_what_a_request_may_cost_ends_its_rounds(world: World) -> None:
    """There is hardly more than for a plain answer: rounds stop, the answer is whole, its cost
    within the limit, and the notes say why."""
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, provider={"prices": PRICES}) as client:
            plenty = report(await ask(client, max_cost_usd=1.0))
            assert plenty.rounds > 1
            most = 0.00018
            tight = report(await ask(client, max_cost_usd=most))
    assert tight.complete
    assert tight.rounds < plenty.rounds
    assert "max_cost_usd" in " ".join((tight.plan_reason, *tight.notes))
    assert tight.cost_usd is not None and tight.cost_usd <= most


async def test_no_room_for_a_round_is_no_fault_of_the_target(world: World) -> None:
    """The answer goes on plain when its turn comes, and the next request is speculated on."""
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, provider={"limits": {"rpm": 60}}) as client:
            first = report(await ask(client))
            assert first.rounds > 1
            left = 0.9 * 60 - await used(client, "lab/rpm")
            store = client._seam.connections._store
            assert await store.take([Want("lab/rpm", left - 2, 60, MINUTE)], time.time()) is None
            second = report(await ask(client))
            assert second.complete
            assert second.rounds <= 2
            assert "limits.rpm = 60, 54 of it for calls that can be left out: 54 calls" in " ".join(
                second.notes
            )
            target = next(iter(client.router.speculation.pool.targets.values()))
            assert target.learned.scoring == "trusted"
            assert not target.learned.resting(time.monotonic())


async def test_a_caller_in_a_hurry_keeps_nobody_from_rounds(world: World) -> None:
    """A deadline in which no scoring request can end says nothing of the target: the next request
    is speculated on."""
    with ReferenceServer(world.spec, pace="tpot=100ms") as server:
        async with speculating(world, server) as client:

            async def eight(**options: float) -> Any:
                return await client.with_options(**options).completions.create(
                    model="m", prompt="a b c", max_tokens=8, temperature=0
                )

            assert report(await eight()).rounds > 0
            with reports() as told, pytest.raises(DeadlineExceeded):
                await eight(timeout=0.15)
            cut = [each.outcome for each in told[0].attempts if each.purpose == "score"]
            assert cut == ["first_token"]
            assert report(await eight()).rounds > 0


async def test_what_runs_beside_a_request_is_not_its_to_pay(world: World) -> None:
    """A calibration that a request has started sees neither its purse nor its reports."""
    with ReferenceServer(world.spec) as server:
        async with speculating(
            world,
            server,
            policy={"preset": "balanced"},
            provider={"prices": PRICES, "probe": False},
        ) as client:
            with reports() as seen:
                found = report(await ask(client, max_cost_usd=0.00018))
                target = next(iter(client.router.speculation.pool.targets.values()))
                async with asyncio.timeout(10), target.calibrating:
                    pass
            assert found.complete
            assert {a.purpose for a in found.attempts} == {"plain"}
            calibration = [r for r in seen if r.id != found.id]
            outcomes = {a.outcome for r in calibration for a in r.attempts}
            assert outcomes == {"ok"}

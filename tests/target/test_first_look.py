"""Beside the first use of a server: a few small calls, kept, and used over the profile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specroute import probed
from specroute.reference.running import ReferenceServer
from specroute.target.first_look import BUDGET
from specroute.types import Report
from tests.engine.answers import TEXT, ask, script
from tests.engine.test_faults import through
from tests.engine.world import World, speculating
from tests.support.proxy import Fault


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    return tmp_path


def the_target(client: Any) -> Any:
    (target,) = client.router.speculation.pool.targets.values()
    return target


async def test_it_is_announced_kept_within_its_budget_and_used_over_the_profile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that no longer continues a prefill, and shows fewer alternatives than its profile
    says; a second client reads what the first has kept."""
    caplog.set_level(logging.INFO, "specroute")
    with ReferenceServer(script(), prefill=[], max_logprobs=5) as server:
        for again in (False, True):
            before = len(server.log)
            async with speculating(World(script()), server) as client:
                await client.warm_up()
                caps = the_target(client).capabilities
                assert (caps.prefill, caps.echo_max_logprobs) == (None, 5)
                assert (await ask(client)).text == TEXT
            looked = [r for r in server.log[before:] if r.path == "/v1/chat/completions"]
            assert (len(looked) > 3) is not again
        kept = probed.load(server.base_url, server.model)
    assert kept is not None
    fields = {f["field"]: f["value"] for f in kept[0]}
    assert fields == {
        "chat": True,
        "max_tokens_param": "max_tokens",
        "disagrees_with_itself": 0.0,
        "echo_max_logprobs": 5,
        "prefill": "none",
    }
    said = [r.getMessage() for r in caplog.records if "first look" in r.getMessage()]
    assert len(said) == 1
    assert f"at most {BUDGET['calls']} calls" in said[0]


async def test_a_request_does_not_wait_for_it() -> None:
    """Its calls are beside the request, in a report of their own, and stay in their budget."""
    seen: list[Report] = []
    done = asyncio.Event()

    def on_report(report: Report) -> None:
        seen.append(report)
        if "first look" in report.plan_reason:
            done.set()

    with ReferenceServer(script()) as server:
        async with speculating(World(script()), server, on_report=on_report) as client:
            got = await ask(client)
            assert got.report is not None
            assert {a.purpose for a in got.report.attempts}.isdisjoint({"probe"})
            await asyncio.wait_for(done.wait(), 20)
    (look,) = [r for r in seen if "first look" in r.plan_reason]
    assert {a.purpose for a in look.attempts} == {"probe"}
    assert 5 <= len(look.attempts) <= BUDGET["calls"]
    assert (look.billed_prompt_tokens or 0) <= BUDGET["prompt"]
    assert 0 < (look.billed_completion_tokens or 0) <= BUDGET["completion"]


async def test_it_can_be_left_out() -> None:
    """``probe = false`` in the provider's table, or nowhere to keep anything."""
    provider = {"probe": False, "capabilities": {"score": ["echo"]}}
    with ReferenceServer(script()) as server:
        async with speculating(World(script()), server, provider=provider) as client:
            await client.warm_up()
            assert sum(r.path == "/v1/chat/completions" for r in server.log) == 1
        assert probed.load(server.base_url, server.model) is None


async def test_what_the_config_states_stays(cache: Path) -> None:
    """The finding is kept, the config's word counts."""
    provider = {"capabilities": {"score": ["echo"], "echo_max_logprobs": 3}}
    with ReferenceServer(script()) as server:
        async with speculating(World(script()), server, provider=provider) as client:
            await client.warm_up()
            assert the_target(client).capabilities.echo_max_logprobs == 3


async def test_a_server_under_stress_is_not_judged() -> None:
    """A 429 in the middle of it says nothing of what the server can do: nothing is kept."""

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        filled = body.get("continue_final_message") is not None
        return Fault("status", 429) if filled else None

    with ReferenceServer(script()) as server:
        async with through(server, judge) as (client, proxy):
            await client.warm_up()
            assert probed.load(proxy.base_url, "chain") is None
            assert the_target(client).capabilities.prefill == "continue_final_message"


def test_the_newest_findings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many servers, whatever others have been seen."""
    monkeypatch.setattr(probed, "MAX_SERVERS", 3)
    urls = [f"http://10.0.0.{n}/v1" for n in range(5)]
    for url in urls:
        probed.save(url, "m", [{"field": "chat", "value": True}])
    assert [probed.load(url, "m") is not None for url in urls] == [False, False, True, True, True]

"""A remote draft on the screen: its stream, its bill, its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specroute import AsyncSpecRoute, Done, Provisional, reports
from specroute.context import Committed, Prompt
from specroute.draft.pieces import pieces
from specroute.draft.remote import remote_drafter
from specroute.reference.running import ReferenceServer
from specroute.target import prefill
from tests.engine.answers import TEXT, ask, script
from tests.engine.test_exits import LONG, active, quiet, until
from tests.method.world import two
from tests.provisional.test_speculate import CHAT, PLAIN, follow

pytestmark = pytest.mark.alone


def config(target: ReferenceServer, draft: ReferenceServer) -> dict[str, Any]:
    price = {"input": 1.0, "output": 2.0}
    return {
        "version": 1,
        "providers": {
            "big": {"profile": "reference", "base_url": target.base_url, "prices": price},
            "small": {"profile": "reference", "base_url": draft.base_url, "prices": price},
        },
        "drafts": {"mini": {"kind": "remote", "provider": "small", "model": "chain"}},
        "models": {"m": {"targets": ["big:chain"], "drafts": ["mini"], "policy": PLAIN}},
    }


async def test_a_remote_draft_streams_onto_the_screen_and_is_booked() -> None:
    """Its first token is shown before its last is made; report and bills agree."""
    with (
        ReferenceServer(script(), pace="ttft=300ms") as target,
        ReferenceServer(script(), pace="tpot=5ms") as draft,
    ):
        async with AsyncSpecRoute(config=config(target, draft)) as client:
            await client.warm_up()
            text, events = await follow(client)
            assert text == TEXT
            assert sum(isinstance(e, Provisional) for e in events) > 5
            report = events[-1].report
            assert report.first_text_s is not None and report.first_text_s < 0.25
            (drafted,) = [a for a in report.attempts if a.purpose == "draft"]
            assert (drafted.target, drafted.outcome) == ("small:chain", "ok")
            billed = [*target.log[-1:], *draft.log]
            assert report.billed_completion_tokens == sum(r.completion_tokens for r in billed)
            assert report.billed_prompt_tokens == sum(r.prompt_tokens for r in billed)


async def test_a_remote_draft_that_was_left_early_is_booked_as_far_as_it_came() -> None:
    """And its provider stops."""
    with (
        ReferenceServer(script(LONG), pace="ttft=5s") as target,
        ReferenceServer(script(LONG), pace="tpot=5ms") as draft,
    ):
        made = config(target, draft)
        made["providers"]["big"]["capabilities"] = {"score": []}
        async with AsyncSpecRoute(config=made) as client:
            stream = client.speculate(model="m", messages=CHAT, temperature=0)
            async with stream:
                seen = 0
                async for event in stream:
                    assert not isinstance(event, Done)
                    seen += 1
                    if seen == 3:
                        break
            await quiet(draft)
            drafted = [a for a in stream.report.attempts if a.purpose == "draft"]
            assert [a.outcome for a in drafted] == ["cancelled"]
            assert drafted[0].estimated and (drafted[0].usage.completion_tokens or 0) >= 3


@pytest.mark.parametrize("method", ["predict", "prefix"])
async def test_a_remote_draft_that_never_came_is_booked(method: str) -> None:
    """Its prompt was sent: the line is reckoned, and the dollars are known."""
    answers = [{"when": "go", "text": "one, two, three. " * 40}]
    async with two(
        method, answers, "four", pace="tpot=20ms", draft_pace="tpot=2s,ttft=0s"
    ) as world:
        with reports() as seen:
            task = asyncio.create_task(ask(world.client, stream=False))
            await until(lambda: bool(active(world.draft)))
            task.cancel()
            await asyncio.wait([task])
        await quiet(world.draft)
        (report,) = seen
        (left,) = [a for a in report.attempts if a.purpose == "draft"]
        assert (left.target, left.outcome, left.estimated) == ("cheap:small", "cancelled", True)
        assert report.cost_usd is not None


@pytest.mark.parametrize("both", [False, True], ids=["goes on", "repeats and trims"])
@pytest.mark.parametrize("before", ["", "one, ", "one, two, three, four; one, two, six. The"])
async def test_a_streamed_draft_goes_on_from_what_is_committed(before: str, both: bool) -> None:
    """In pieces that together are what ``propose`` gives, whatever the prefill does at its ends."""
    with ReferenceServer(script(), prefill_repeats=both, prefill_trims=both) as server:
        provider = {
            "profile": "reference",
            "base_url": server.base_url,
            "capabilities": {"prefill_repeats": both, "prefill_trims": both},
        }
        loaded = {"version": 1, "providers": {"p": provider}}
        async with AsyncSpecRoute(config=loaded) as client:
            http = client.router.http(client.router.config.providers["p"])
            drafter = remote_drafter("mini", "chain", http, prefill.continued)
            prompt = Prompt(tuple(CHAT), None)
            whole = await (await drafter.open(prompt, None)).propose(Committed(before), 9)
            session = await drafter.open(prompt, None)
            found = [p async for p in pieces(session, Committed(before), 9)]
            assert "".join(p.text for p in found) == whole.text != ""
            assert len(found) > 4
            last = found[-1].usage
            assert last is not None and whole.usage is not None
            assert last.completion_tokens == whole.usage.completion_tokens
            assert last.prompt_tokens == whole.usage.prompt_tokens

"""A client that is closed while answers are under way: what came of them is never taken for all."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

import specroute
from specroute.testing import faults
from tests.faults.cells import MESSAGES, SETUPS, world

pytestmark = pytest.mark.alone

KINDS = ["plain", "score/echo", "prefix", "predict", "cascade", "judge", "race", "hedge"]


def create(client: Any, **body: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, temperature=0, **body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("setup", KINDS)
async def test_before_anything_was_handed_on(setup: str, stream: bool) -> None:
    """The caller gets a typed error, not a cancellation that it did not ask for, and no plain
    answer is begun any more."""
    async with world(SETUPS[setup], *[faults.silence()] * 50) as made:
        task = asyncio.ensure_future(create(made.client, stream=stream))
        await made.servers[0].arrived(1)
        await made.client.close()
        with pytest.raises(openai.APIError) as caught:
            await asyncio.wait_for(task, 2)
        assert isinstance(caught.value, specroute.SpecRouteError)
        assert [r.complete for r in made.reports if r.attempts] in ([False], [])


@pytest.mark.parametrize("provisional", [False, True])
@pytest.mark.parametrize("setup", KINDS)
async def test_in_the_middle_of_a_stream(setup: str, provisional: bool) -> None:
    """The rest is a typed error; only a reader that closes its stream itself sees a quiet end."""
    body = {"extra_body": {"specroute": {"provisional": True}}} if provisional else {}
    async with world(SETUPS[setup], pace="ttft=5ms,tpot=20ms") as made:
        stream = await create(made.client, stream=True, **body)
        await anext(stream)
        await made.client.close()
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
        assert isinstance(caught.value, specroute.SpecRouteError)
        assert not any(r.complete for r in made.reports if r.attempts)
        await stream.close()
        assert [chunk async for chunk in stream] == []

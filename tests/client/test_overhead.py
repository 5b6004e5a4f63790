"""What a plain client costs beyond ``AsyncOpenAI``, in calls of Python functions: the same on every
machine, so that what comes in later can't make every request dearer unnoticed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx2
import openai
import pytest

import specroute
from specroute import AsyncSpecRoute
from specroute.http.wire import dumps
from tests.client.world import MESSAGES
from tests.support.loopback import DONE, chunk, completion

OURS = str(Path(specroute.__file__).parent)


class Calls(NamedTuple):
    """Python functions entered, coroutines taken up again included."""

    ours: int
    all: int


class Pieces(httpx2.AsyncByteStream):
    """A body in pieces, each of which is waited for."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece


class Instant(httpx2.AsyncBaseTransport):
    """Answers without a network, whose work would vary."""

    def __init__(self, kind: str, pieces: list[bytes]) -> None:
        self._headers = {"content-type": kind, "x-request-id": "req_1"}
        self._pieces = pieces

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0)
        return httpx2.Response(200, headers=self._headers, stream=Pieces(self._pieces))


async def calls(
    kind: type[openai.AsyncOpenAI], pieces: list[bytes], *, stream: bool = False
) -> Calls:
    """What one call of a client of that kind comes to, once everything is warm."""
    ours = total = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal ours, total
        if event == "call":
            total += 1
            ours += frame.f_code.co_filename.startswith(OURS)

    transport = Instant("text/event-stream" if stream else "application/json", pieces)
    upstream = openai.DefaultAsyncHttpxClient(transport=transport)
    found = []
    async with kind(api_key="k", base_url="http://127.0.0.1:1/v1", http_client=upstream) as client:

        async def once() -> None:
            answer: Any = await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=stream
            )
            if stream:
                async for _ in answer:
                    pass

        for _ in range(3):
            await once()
            gc.collect()
            gc.disable()  # Others' finalisers are not this call's.
            ours = total = 0
            before = sys.getprofile()
            sys.setprofile(note)
            try:
                await once()
            finally:
                sys.setprofile(before)
                gc.enable()
            found.append(Calls(ours, total))
    return min(found)


def text(count: int) -> list[bytes]:
    """A streamed answer of ``count`` pieces of text."""
    return [chunk(role="assistant"), *[chunk("word ")] * count, chunk(finish="stop"), DONE]


PIECES = 20


async def test_a_plain_call_costs_less_than_openais() -> None:
    """A client with nothing configured saves more on openai's steps than its own come to."""
    whole = [dumps(completion("Hello"))]
    theirs, ours = await calls(openai.AsyncOpenAI, whole), await calls(AsyncSpecRoute, whole)
    assert ours.all <= 0.9 * theirs.all
    assert ours.ours <= 145


@pytest.mark.parametrize(
    ("together", "at_start", "a_piece"),
    [
        pytest.param(False, 310, 35, id="each piece by itself"),
        pytest.param(True, 246, 11, id="all in one"),
    ],
)
async def test_a_stream_costs_less_than_openais(
    together: bool, at_start: int, a_piece: int
) -> None:
    """To open it three quarters at most, and for each piece of its text a fifth."""

    async def stream(kind: type[openai.AsyncOpenAI], count: int) -> Calls:
        pieces = text(count)
        return await calls(kind, [b"".join(pieces)] if together else pieces, stream=True)

    theirs, ours = await stream(openai.AsyncOpenAI, 1), await stream(AsyncSpecRoute, 1)
    assert ours.all <= 0.75 * theirs.all
    assert ours.ours <= at_start
    their_more = (await stream(openai.AsyncOpenAI, 1 + PIECES)).all - theirs.all
    long = await stream(AsyncSpecRoute, 1 + PIECES)
    assert long.all - ours.all <= 0.2 * their_more
    assert long.ours - ours.ours <= a_piece * PIECES

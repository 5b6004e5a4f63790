"""What ``AsyncSpecRoute`` costs beside ``AsyncOpenAI``, in calls of Python functions: the same on every
machine, so that what comes in later can't make every request dearer unnoticed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterator
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

pytestmark = pytest.mark.alone

OURS = str(Path(specroute.__file__).parent)


@pytest.fixture(autouse=True)
def _only_own_garbage() -> Iterator[None]:
    """Collecting between calls goes through what they left, not through everything imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


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


URL = "http://127.0.0.1:1/v1"
ONE_TARGET = {
    "version": 1,
    "providers": {"here": {"profile": "generic", "base_url": URL}},
    "models": {"m": {"targets": ["here:m"]}},
}

Client = Callable[[httpx2.AsyncClient], openai.AsyncOpenAI]


def openais(upstream: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=URL, http_client=upstream)


def plain(upstream: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return AsyncSpecRoute(api_key="k", base_url=URL, http_client=upstream)


def configured(upstream: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return AsyncSpecRoute(config=ONE_TARGET, http_client=upstream)


async def calls(make: Client, pieces: list[bytes], *, stream: bool = False) -> Calls:
    """What one call of such a client comes to, once everything is warm."""
    ours = total = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal ours, total
        if event == "call":
            total += 1
            ours += frame.f_code.co_filename.startswith(OURS)

    transport = Instant("text/event-stream" if stream else "application/json", pieces)
    upstream = openai.DefaultAsyncHttpxClient(transport=transport)
    found = []
    async with make(upstream) as client:

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


@pytest.mark.parametrize(
    ("client", "share", "most"),
    [
        pytest.param(plain, 0.87, 146, id="nothing configured"),
        pytest.param(configured, 0.95, 192, id="a model with one target"),
    ],
)
async def test_a_plain_call_costs_less_than_openais(
    client: Client, share: float, most: int
) -> None:
    """It saves more on openai's steps than its own come to."""
    whole = [dumps(completion("Hello"))]
    theirs, ours = await calls(openais, whole), await calls(client, whole)
    assert ours.all <= share * theirs.all
    assert ours.ours <= most


@pytest.mark.parametrize(
    ("client", "together", "share", "at_start", "a_piece"),
    [
        pytest.param(plain, False, 0.72, 312, 36, id="nothing configured, each piece by itself"),
        pytest.param(plain, True, 0.72, 248, 12, id="nothing configured, all in one"),
        pytest.param(configured, False, 0.8, 372, 36, id="one target, each piece by itself"),
        pytest.param(configured, True, 0.8, 296, 12, id="one target, all in one"),
    ],
)
async def test_a_stream_costs_less_than_openais(
    client: Client, together: bool, share: float, at_start: int, a_piece: int
) -> None:
    """To open it, and for each piece of its text a fifth at most."""

    async def stream(client: Client, count: int) -> Calls:
        pieces = text(count)
        return await calls(client, [b"".join(pieces)] if together else pieces, stream=True)

    theirs, ours = await stream(openais, 1), await stream(client, 1)
    assert ours.all <= share * theirs.all
    assert ours.ours <= at_start
    their_more = (await stream(openais, 1 + PIECES)).all - theirs.all
    long = await stream(client, 1 + PIECES)
    assert long.all - ours.all <= 0.2 * their_more
    assert long.ours - ours.ours <= a_piece * PIECES

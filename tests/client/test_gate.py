"""Gates: every call to a provider is announced before it leaves and settled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from specroute import AsyncSpecRoute, errors
from specroute.config import ProviderConfig, Timeouts, parse
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import Deadline
from specroute.http.gate import Departure
from specroute.router import Router
from specroute.store import MemoryStore
from specroute.types import Usage
from tests.client.test_lifecycle import collect
from tests.client.world import KEYS, MESSAGES, config
from tests.support.loopback import (
    DONE,
    Exchange,
    Handler,
    Loopback,
    chunk,
    chunks,
    completion,
    event,
)


class Recorder:
    """A gate that notes everything; ``refusal`` is raised in the place of a permit."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.departures: list[Departure] = []
        self.told: list[Any] = []
        self.settled = asyncio.Event()

    async def enter(self, departure: Departure) -> Recorder:
        if self.refusal is not None:
            raise self.refusal
        self.departures.append(departure)
        return self

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        self.told.append(status)

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        counted = usage.completion_tokens if usage is not None else None
        self.told.append((counted, type(error).__name__ if error else None))
        self.settled.set()


@asynccontextmanager
async def watched(
    handler: Handler, *gates: Recorder, **options: Any
) -> AsyncIterator[tuple[Loopback, Any]]:
    async with (
        Loopback(handler) as server,
        AsyncSpecRoute(config=config(server.url), **options) as client,
    ):
        seam: Any = client._client
        found = parse(config(server.url), environ=KEYS)
        seam.connections.answer_with(
            lambda up, store: Router(found, http_client=up, gates=gates, store=store),
            MemoryStore(),
        )
        yield server, client


USED = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}


async def whole(exchange: Exchange) -> None:
    await exchange.json_answer({**completion("Hello"), "usage": USED})


async def streamed(exchange: Exchange) -> None:
    last = event({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": USED})
    await exchange.stream([*chunks("Hel", "lo")[:-1], last, DONE])


async def cut(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(chunk("Hel"))
    await exchange.finish()


async def refuses(exchange: Exchange) -> None:
    await exchange.json_answer({"error": {"message": "no"}}, 400)


async def resets(exchange: Exchange) -> None:
    exchange.cut()


@pytest.mark.parametrize(
    ("handler", "stream", "told"),
    [
        (whole, False, [200, (2, None)]),
        (streamed, True, [200, (2, None)]),
        (cut, True, [200, (1, "StreamTruncated")]),
        (refuses, False, [400, (None, None)]),
        (resets, False, [(None, "ConnectFailed")]),
    ],
)
async def test_a_call_is_announced_and_settled_once(
    handler: Handler, stream: bool, told: list[Any]
) -> None:
    """Who is asked for what, the headers where they came, then usage and what ended it."""
    gate = Recorder()
    async with watched(handler, gate, max_retries=0) as (_, client):
        try:
            got = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=stream
            )
            if stream:
                async for _ in got:
                    pass
        except openai.APIError:
            pass
    (left,) = gate.departures
    assert (left.provider.name, left.model, left.purpose) == ("lab", "lab-model", "plain")
    assert left.content is not None and b"Say hello." in left.content
    assert gate.told == told


async def test_every_attempt_passes_the_gate() -> None:
    """A retry is a call of its own."""
    answers = iter([503, 200])

    async def flaky(exchange: Exchange) -> None:
        status = next(answers)
        await exchange.json_answer(completion("Hello"), status, {"retry-after-ms": "1"})

    gate = Recorder()
    async with watched(flaky, gate) as (_, client):
        await client.chat.completions.create(model="smart", messages=MESSAGES)
    assert [t for t in gate.told if isinstance(t, int)] == [503, 200]
    assert len(gate.told) == 4


async def test_a_refusal_sends_nothing_and_settles_what_was_passed() -> None:
    """A gate's error reaches the caller; the gate before it is told."""
    first = Recorder()
    second = Recorder(errors.RequestError("over the limit"))
    async with watched(whole, first, second) as (server, client):
        with pytest.raises(openai.BadRequestError, match="over the limit"):
            await client.chat.completions.create(model="smart", messages=MESSAGES)
        assert server.seen == []
    assert first.told == [(None, "RequestError")]


@pytest.mark.parametrize("how", ["closed", "dropped"])
async def test_a_stream_left_early_is_settled(how: str) -> None:
    """Closed or dropped: with the count of what came."""

    async def endless(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(chunk("Hel"))
        await exchange.gone.wait()

    gate = Recorder()
    async with watched(endless, gate) as (_, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        if how == "closed":
            await stream.close()
        else:
            del stream
            await collect()
        await gate.settled.wait()
    assert gate.told == [200, (1, None)]


async def test_a_request_that_cannot_be_made_passes_no_gate() -> None:
    """Nothing would ever settle what was reserved for it."""
    gate = Recorder()
    http = HttpClient(ProviderConfig("lab", "generic", "http://127.0.0.1:1/v1"), gates=[gate])
    with pytest.raises(UnicodeEncodeError):
        await http.send(Call("GET", "/models/é"), Deadline(Timeouts()))
    assert not gate.departures
    await http.aclose()

"""Events of a plain stream that come together are read as those that come one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from random import Random
from typing import Any

import httpx2
import pytest

from specroute.config import parse
from specroute.errors import ProviderError
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.reply import OpenReply
from specroute.plain.ordinary import middle
from specroute.plain.passthrough import PlainStream, Recovery
from specroute.plain.tally import PlainTally
from specroute.types import TargetRef
from tests.support.loopback import DONE, chunk, event

USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
TEXT = chunk("word ")
EVENTS = [
    *[TEXT] * 8,
    chunk('two "words": {"a": [1]}'),
    TEXT.replace(b'":', b'": '),
    TEXT.replace(b': "word', b':"word').replace(b'"content": ', b'"content":'),
    chunk("", role="assistant"),
    chunk(role="assistant"),
    b": keep-alive\n\n",
    b"data: {broken}\n\n",
    TEXT.replace(b"}", b"", 1),
    chunk(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
    chunk(finish="stop"),
    USAGE,
    event({"error": {"message": "no"}}),
    DONE,
]


class Body(httpx2.AsyncByteStream):
    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


class Canned(httpx2.AsyncBaseTransport):
    """Answers with the pieces that are set."""

    pieces: Sequence[bytes]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Body(self.pieces))


class Nobody:
    """Goes on with nothing."""

    async def again(self, error: ProviderError) -> OpenReply:
        raise error

    async def resume(
        self, error: ProviderError, kept: Sequence[bytes]
    ) -> AsyncGenerator[bytes] | None:
        return None


async def read(
    pieces: Sequence[bytes], recovery: Recovery | None
) -> tuple[bytes, str, dict[str, Any]]:
    """What is handed on, how it ends, and what the report says of it."""
    transport = Canned()
    transport.pieces = pieces
    given = {"generic": {"profile": "generic", "base_url": "http://127.0.0.1:9/v1"}}
    config = parse({"version": 1, "providers": given}, "test", {})
    out, end = b"", ""
    async with httpx2.AsyncClient(transport=transport) as client:
        http = HttpClient(config.providers["generic"], client=client)
        reply = await http.send(Call(path="chat/completions", content=b"{}"), Deadline(UNLIMITED))
        tally = PlainTally("m", TargetRef("p", "m"), Deadline(UNLIMITED), lambda _: None, str)
        try:
            async for piece in PlainStream(reply, tally, "p", 1, recovery):
                out += piece
        except ProviderError as error:
            end = f"{type(error).__name__}: {error}"
    report = tally.report()
    said = ("finish_reason", "complete", "error", "completion_tokens", "prompt_tokens")
    return out, end, {name: getattr(report, name) for name in said} | {"chunks": tally.chunks}


def grouped(events: Sequence[bytes], rng: Random) -> list[bytes]:
    """The events, some of them joined."""
    groups, at = [], 0
    while at < len(events):
        size = rng.choice((1, 2, 3, 5, 8, 13))
        groups.append(b"".join(events[at : at + size]))
        at += size
    return groups


@pytest.mark.parametrize(
    "recovery", [pytest.param(None, id="alone"), pytest.param(Nobody(), id="with a recovery")]
)
async def test_events_that_come_together_are_read_alike(recovery: Recovery | None) -> None:
    """400 streams: the same bytes, the same end and the same figures, however they are cut."""
    for seed in range(400):
        rng = Random(seed)
        events = [*rng.choices(EVENTS[:9], k=rng.randrange(9)), *rng.choices(EVENTS, k=5)]
        if rng.random() < 0.5:
            events += [TEXT] * rng.randrange(4) + [chunk(finish="stop"), DONE]
        apart = await read(events, recovery)
        together = await read(grouped(events, rng), recovery)
        assert apart == together, f"seed {seed}: {events}"


def test_the_ordinary_run_lies_between_the_role_and_the_end() -> None:
    """The first event and the last few are left out where they are not ordinary."""
    role, end = chunk("", role="assistant"), chunk(finish="stop") + USAGE + DONE
    for first, last in [(b"", b""), (role, b""), (b"", end), (role, end)]:
        text = TEXT * 3
        whole = first + text + last
        assert middle(whole) == (len(first), len(first + text))
    assert middle(role) == (len(role), len(role))
    assert middle(TEXT[:-1]) == (0, 0)

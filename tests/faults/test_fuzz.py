"""100,000 damaged streams and bodies: a value or a typed error, never a crash, never a hang."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import httpx2
import pytest

from specroute.errors import ProviderError
from specroute.http import wire
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.events import EventStream
from specroute.http.sse import SseDecoder, SseEvent
from specroute.plain.passthrough import PlainStream
from specroute.plain.tally import PlainTally
from specroute.target import stream
from specroute.target.view import BadEvidence
from specroute.types import TargetRef, Usage
from tests.faults.mutate import damaged, dumps, pieces, wounded
from tests.support.loopback import DONE, chunk, chunks, completion, event
from tests.target.test_dialects import CASES

LOGPROB = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}]}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"x": 1}'}}


def _choice(**fields: Any) -> bytes:
    return event({"id": "1", "choices": [{"index": 0, "finish_reason": None, **fields}]})


STREAMS = [
    b"".join(chunks("Hel", "lo", " 你好")),
    b": keep-alive\n\n" + b"".join(chunks("a")) + b"\n",
    chunk("a", role="assistant") + event({"choices": [], "usage": {"prompt_tokens": 7}}) + DONE,
    _choice(delta={"tool_calls": [CALL]}) + chunk(finish="tool_calls") + DONE,
    _choice(delta={"content": "a"}, logprobs=LOGPROB) + chunk(finish="length") + DONE,
    _choice(text="a", logprobs={"tokens": ["token_id:5"], "token_logprobs": [-0.2]}) + DONE,
    chunk("a") + event({"error": {"message": "boom"}}),
    b'event: error\ndata: {"message":"boom"}\n\n',
    b"\xef\xbb\xbfdata: one\ndata: two\r\n\r\ndata:\n\n" + chunk("b", finish="stop") + DONE,
    json.dumps(completion("whole")).encode(),
]
BODIES = [completion("Hello"), {"error": {"message": "no", "code": 5}}, {"choices": None}]


def decoded(parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    decoder = SseDecoder("p")
    events = [e for part in parts for e in decoder.feed(part)]
    return [(e.name, e.payload) for e in [*events, *decoder.flush()]]


def look(one: SseEvent) -> None:
    """Everything that is ever read of an event."""
    assert all(isinstance(x, bool) for x in (one.done, one.has_content, one.has_finish))
    assert one.only_usage <= one.has_usage
    try:
        _ = one.error
        data = one.data
    except ProviderError:
        return
    piece = stream._read(data)
    if piece is not None:
        assert isinstance(piece.text, str)
        assert piece.ids is None or all(isinstance(i, int) and i >= 0 for i in piece.ids)
    Usage.from_wire(data.get("usage"))


def sse(rng: Random) -> None:
    """However it is cut, the same events; of each, everything can be read."""
    data = damaged(rng.choice(STREAMS), rng)
    whole = decoded([data])
    assert decoded(pieces(data, rng)) == whole
    for name, payload in whole:
        look(SseEvent(payload, payload, name, "p"))


def json_body(rng: Random) -> None:
    """A body is an object or a typed error; what is made of it is a stream that can be read."""
    value = rng.choice(BODIES)
    body = dumps(wounded(value, rng)) if rng.random() < 0.7 else damaged(dumps(value), rng)
    assert isinstance(wire.status_message(500, body), str)
    assert isinstance(wire.describe(body), str)
    try:
        data = wire.read_object(body, provider="p")
    except ProviderError:
        return
    error = wire.error_in(data)
    if error is not None:
        assert isinstance(wire.error_message(error, "x"), str)
        return
    Usage.from_wire(data.get("usage"))
    for one in SseDecoder("p").feed(wire.as_chunks(data)):
        if not one.done:
            look(one)


ASKED = [(case, case.ask(), case.honest()) for case in CASES.values()]


def evidence(rng: Random) -> None:
    """Every dialect reads a view or refuses, whatever it is given."""
    case, asked, honest = rng.choice(ASKED)
    data = wounded(honest, rng)
    try:
        view = case.view(data, asked)
    except (BadEvidence, ProviderError):
        return
    for position in view.positions:
        assert (
            position.logprob is None
            or position.logprob <= 0
            or position.logprob != position.logprob
        )


class Body(httpx2.AsyncByteStream):
    """A response's body, without a socket."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part

    async def aclose(self) -> None:
        pass


class Canned(httpx2.AsyncBaseTransport):
    """Answers everything with the body that is set."""

    parts: list[bytes]
    kind = "text/event-stream"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": self.kind}
        return httpx2.Response(200, headers=headers, stream=Body(self.parts), request=request)


@pytest.mark.parametrize(
    ("count", "one"),
    [(30_000, sse), (25_000, json_body), (35_000, evidence)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_pure_readers(count: int, one: Callable[[Random], None]) -> None:
    """What reads bytes and JSON, by itself; the slowest input takes no tenth of a second more
    than the machine's noise."""
    slowest, worst = 0.0, 0
    for seed in range(count):
        started = time.thread_time()
        try:
            one(Random(seed))
        except Exception as error:
            raise AssertionError(f"{one.__name__}, seed {seed}: {error!r}") from error
        took = time.thread_time() - started
        if took > slowest:
            slowest, worst = took, seed
    if slowest > 0.1:
        again = min(_seconds(one, worst) for _ in range(3))
        assert again < 0.1, f"seed {worst}: {again:.2f} s"


def _seconds(one: Callable[[Random], None], seed: int) -> float:
    started = time.thread_time()
    one(Random(seed))
    return time.thread_time() - started


async def test_whole_streams(provider: Any) -> None:
    """10,000 through the plain stream and the target's: bytes or events to a good end only where
    there was a finish_reason or [DONE]; otherwise one typed error."""
    transport = Canned()
    async with httpx2.AsyncClient(transport=transport) as client:
        http = HttpClient(provider, client=client)
        for seed in range(5_000):
            rng = Random(seed)
            data = damaged(rng.choice(STREAMS), rng)
            for read in (plain, events):
                transport.parts = [p for p in pieces(data, rng) if p]
                try:
                    out = await read(http)
                except ProviderError:
                    continue
                except Exception as error:
                    raise AssertionError(f"{read.__name__}, seed {seed}: {error!r}") from error
                ended = b"finish_reason" in data or b"[DONE]" in data or b"choices" in data
                assert ended, f"{read.__name__}, seed {seed}: {data!r} passes for complete: {out!r}"


async def plain(http: HttpClient) -> bytes:
    reply = await http.send(Call(path="chat/completions", content=b"{}"), Deadline(UNLIMITED))
    tally = PlainTally("m", TargetRef("p", "m"), Deadline(UNLIMITED), lambda _: None, str)
    return b"".join([piece async for piece in PlainStream(reply, tally, "p")])


async def events(http: HttpClient) -> int:
    reply = await http.send(Call(path="chat/completions", content=b"{}"), Deadline(UNLIMITED))
    count = 0
    async with EventStream(reply, "p") as found:
        async for one in found:
            stream._read(one.data)
            count += 1
    return count


@pytest.fixture
def provider() -> Any:
    from specroute.config import parse

    given = {"generic": {"profile": "generic", "base_url": "http://127.0.0.1:9/v1"}}
    return parse({"version": 1, "providers": given}, "test", {}).providers["generic"]

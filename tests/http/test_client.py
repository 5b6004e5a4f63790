"""The HTTP client against a real server: deadlines, endings, reuse, errors."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import openai
import pytest

from specroute.config import ProviderConfig, Timeouts
from specroute.errors import (
    BadAnswer,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ErrorInBody,
    StatusError,
    StreamAbandoned,
    StreamTruncated,
)
from specroute.http.client import Call, HttpClient
from specroute.http.deadline import Deadline
from specroute.http.events import EventStream
from tests.support.loopback import DONE, Exchange, Handler, Loopback, chunk, chunks, event

QUICK = Timeouts(connect=5, first_token=0.3, stall=0.2, total=0.6, idle=0.2)
PATIENT = Timeouts(connect=5, first_token=20, stall=20, total=20, idle=20)
KEY = "sk-canary-1234567890"

Make = Callable[..., HttpClient]


@pytest.fixture(params=["httpx2", "aiohttp"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes clients for a server, over both upstream transports; closes them."""
    made: list[Any] = []

    def build(server: Loopback | str, **fields: Any) -> HttpClient:
        base = server if isinstance(server, str) else server.url
        upstream = openai.DefaultAioHttpClient() if request.param == "aiohttp" else None
        client = HttpClient(
            ProviderConfig("lab", "generic", base, api_key=KEY, **fields), client=upstream
        )
        made.extend([client, *([upstream] if upstream else [])])
        return client

    yield build
    for one in made:
        await one.aclose()


def answering(*pieces: bytes) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(pieces)

    return handle


async def texts(stream: EventStream) -> list[str]:
    return [
        choice["delta"].get("content", "")
        async for item in stream
        for choice in item.data["choices"]
    ]


async def test_posting_json(make: Make) -> None:
    """The payload, the key and the provider's own headers and query go out; an object comes back."""

    async def handle(exchange: Exchange) -> None:
        await exchange.json_answer({"seen": exchange.json}, headers={"x-request-id": "r1"})

    async with Loopback(handle) as server:
        client = make(server, headers={"X-Own": "yes"}, query={"api-version": "1"})
        reply = await client.post_json(
            "/chat/completions", {"a": "é"}, Deadline(PATIENT), headers={"X-More": "m"}
        )
        seen = server.seen[0]
    assert reply.data == {"seen": {"a": "é"}}
    assert (reply.request_id, reply.status, reply.seconds > 0) == ("r1", 200, True)
    assert (seen.path, seen.query) == ("/v1/chat/completions", {"api-version": "1"})
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert (seen.headers["x-own"], seen.headers["x-more"]) == ("yes", "m")


@pytest.mark.parametrize(
    ("base", "root"),
    [("/v1", "/tokenize"), ("/v1/", "/tokenize"), ("/a/v1", "/a/tokenize"), ("", "/tokenize")],
)
async def test_paths_are_below_the_base_or_its_root(base: str, root: str) -> None:
    """A trailing slash changes nothing; the root is the base without its last /v1."""
    client = HttpClient(ProviderConfig("lab", "generic", "http://h:1" + base))
    assert client.url("/x").path == base.rstrip("/") + "/x"
    assert client.url("/tokenize", root=True).path == root


@pytest.mark.parametrize("auth", ["bearer", "api-key", "none"])
async def test_the_key_travels_as_the_profile_says(auth: str) -> None:
    """As a bearer token, as Azure's api-key, or not at all."""

    async def handle(exchange: Exchange) -> None:
        await exchange.json_answer({})

    async with Loopback(handle) as server:
        client = HttpClient(
            ProviderConfig("lab", "generic", server.url, api_key=KEY), profile_auth=auth
        )
        await client.post_json("/x", {}, Deadline(PATIENT))
        headers = server.seen[0].headers
        await client.aclose()
    assert [headers.get("authorization"), headers.get("api-key")] == {
        "bearer": [f"Bearer {KEY}", None],
        "api-key": [None, KEY],
        "none": [None, None],
    }[auth]


async def test_a_stream_ends_after_done_and_its_connection_is_reused(make: Make) -> None:
    """Six streams, one connection."""
    async with Loopback(answering(*chunks("a", "b"))) as server:
        client = make(server)
        for _ in range(6):
            stream = await client.post_stream("/chat/completions", {}, Deadline(PATIENT))
            assert await texts(stream) == ["", "a", "b", ""]
            assert stream.finished
        assert (server.connections, len(server.seen)) == (1, 6)


async def test_done_is_not_held_up_by_a_server_that_keeps_the_stream_open(make: Make) -> None:
    """[DONE] is the end; the body's end is waited for only for a moment."""

    async def handle(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(b"".join(chunks("a")))
        await exchange.gone.wait()

    async with Loopback(handle) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        async with asyncio.timeout(2):
            assert await texts(stream) == ["", "a", ""]
            await server.seen[0].gone.wait()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([chunk("a"), chunk(finish="stop")], ["a", ""]),
        ([chunk("a"), DONE], ["a"]),
        ([chunk("a"), chunk(finish="stop").rstrip()], ["a", ""]),
        ([b": hi\n\n", b"data:\n\n", b"event: ping\n\n", chunk("a"), DONE], ["a"]),
        ([chunk("a").replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")], ["a"]),
        ([bytes([byte]) for byte in chunk("é") + DONE], ["é"]),
    ],
)
async def test_streams_that_are_complete(
    make: Make, pieces: list[bytes], expected: list[str]
) -> None:
    """A finish_reason or [DONE] makes an answer complete, however it is framed."""
    async with Loopback(answering(*pieces)) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        assert await texts(stream) == expected


@pytest.mark.parametrize(
    "pieces", [[], [chunk("a")], [chunk("a"), b'data: {"choices":[{"finish'], [b": only\n\n"]]
)
async def test_a_stream_that_just_stops_is_truncated(make: Make, pieces: list[bytes]) -> None:
    """Neither finish_reason nor [DONE]: never a success."""
    async with Loopback(answering(*pieces)) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        with pytest.raises(StreamTruncated):
            await texts(stream)


async def test_a_cut_connection_is_truncated(make: Make) -> None:
    """A reset in the middle of a stream."""

    async def handle(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(chunk("a"))
        exchange.cut()

    async with Loopback(handle) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        with pytest.raises(StreamTruncated):
            await texts(stream)


@pytest.mark.parametrize(
    "piece",
    [
        event({"error": {"message": "boom", "code": 5}}),
        b'event: error\ndata: {"message":"boom"}\n\n',
    ],
)
async def test_an_error_event_is_an_error(make: Make, piece: bytes) -> None:
    """``{"error": …}`` or ``event: error`` in a stream."""
    async with Loopback(answering(chunk("a"), piece, DONE)) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        with pytest.raises(ErrorInBody, match="boom") as caught:
            await texts(stream)
    assert caught.value.body["message"] == "boom"


async def test_json_instead_of_events_becomes_one_chunk(make: Make) -> None:
    """A server that ignores ``stream: true``."""

    async def handle(exchange: Exchange) -> None:
        message = {"role": "assistant", "content": "hi"}
        await exchange.json_answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    async with Loopback(handle) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        assert await texts(stream) == ["hi"]


@pytest.mark.parametrize(
    ("status", "kind", "body", "error"),
    [
        (401, "application/json", b'{"error":{"message":"no"}}', StatusError),
        (404, "text/html", b"<html>", StatusError),
        (429, "application/json", b"{}", StatusError),
        (503, "text/plain", b"busy", StatusError),
        (200, "text/html", b"<html>welcome</html>", BadAnswer),
        (200, "application/json", b"{", BadAnswer),
        (200, "application/json", b"", BadAnswer),
        (200, "application/json", b"[1]", BadAnswer),
        (200, "application/json", b"\xff\xfe", BadAnswer),
        (200, "application/json", b'{"error":{"message":"no"}}', ErrorInBody),
        (200, "application/json", b'{"error":"no"}', ErrorInBody),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_that_are_errors(
    make: Make, status: int, kind: str, body: bytes, error: type[Exception], stream: bool
) -> None:
    """Statuses, web pages, broken JSON and errors inside a 200, streamed or not."""

    async def handle(exchange: Exchange) -> None:
        await exchange.send(status, body, kind=kind)

    async with Loopback(handle) as server:
        client = make(server)
        post = client.post_stream if stream else client.post_json
        with pytest.raises(error) as caught:
            await post("/x", {}, Deadline(PATIENT))
    assert KEY not in repr(caught.value)
    if status == 404:
        assert "base_url is" in caught.value.__notes__[0]


async def _silent(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def _headers_only(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.gone.wait()


async def _keep_alives(exchange: Exchange) -> None:
    await exchange.start()
    while not exchange.gone.is_set():
        await exchange.piece(b": ping\n\n")
        await exchange.piece(chunk("", role="assistant"))
        await asyncio.sleep(0.02)


async def _stalls(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(chunk("a"))
    while not exchange.gone.is_set():
        await exchange.piece(b": ping\n\n")
        await asyncio.sleep(0.02)


async def _drips(exchange: Exchange) -> None:
    await exchange.start()
    while not exchange.gone.is_set():
        await exchange.piece(chunk("a"))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("handler", "which"),
    [
        (_silent, "first_token"),
        (_headers_only, "first_token"),
        (_keep_alives, "first_token"),
        (_stalls, "stall"),
        (_drips, "total"),
    ],
)
async def test_each_deadline(make: Make, handler: Handler, which: str) -> None:
    """Nothing but content resets a clock, nothing hangs, and the upstream is ended."""
    async with Loopback(handler) as server:
        deadline = Deadline(QUICK)
        with pytest.raises(DeadlineExceeded) as caught:
            await texts(await make(server).post_stream("/x", {}, deadline))
        late = deadline.clock() - deadline.started
        async with asyncio.timeout(2):
            await server.seen[0].gone.wait()
    assert caught.value.which == which
    assert late < 2
    assert f"timeouts.{which}" in str(caught.value)


async def test_a_deadline_spans_the_requests_that_share_it(make: Make) -> None:
    """What one request used up is gone for the next."""
    async with Loopback(_silent) as server:
        client = make(server)
        deadline = Deadline(QUICK)
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await client.post_json("/x", {}, deadline)
        assert len(server.seen) == 1


async def test_a_reader_that_takes_its_time_is_no_stall(make: Make) -> None:
    """Time that the reader spends with what it was given is not the provider's silence."""
    slow = Timeouts(connect=5, first_token=5, stall=0.15, total=20, idle=0)
    async with Loopback(answering(*chunks("a", "b"))) as server:
        got = []
        async for item in await make(server).post_stream("/x", {}, Deadline(slow)):
            await asyncio.sleep(0.2)  # Longer than the stall limit: this is the point.
            got.append(item.payload)
    assert len(got) == 4


async def test_a_stream_held_unread_is_ended(make: Make) -> None:
    """The idle watchdog ends the upstream, and a later read says so."""
    async with Loopback(_drips) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(QUICK))
        await anext(stream)
        async with asyncio.timeout(2):
            await server.seen[0].gone.wait()
        with pytest.raises(StreamAbandoned):
            await anext(stream)


async def _close(stream: EventStream) -> None:
    await stream.aclose()


async def _leave(stream: EventStream) -> None:
    async with stream:
        pass


@pytest.mark.parametrize("end", [_close, _leave])
async def test_closing_ends_the_upstream_at_once(make: Make, end: Any) -> None:
    """aclose() and leaving ``async with``."""
    async with Loopback(_drips) as server:
        stream = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        await anext(stream)
        await end(stream)
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()
        await stream.aclose()


@pytest.mark.parametrize("handler", [_silent, _headers_only])
async def test_cancelling_ends_the_upstream_at_once(make: Make, handler: Handler) -> None:
    """Before and after the headers."""
    async with Loopback(handler) as server:
        client = make(server)

        async def call() -> None:
            await texts(await client.post_stream("/x", {}, Deadline(PATIENT)))

        task = asyncio.create_task(call())
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()


async def test_dropping_ends_the_upstream(make: Make) -> None:
    """A stream that nobody holds any more."""
    async with Loopback(_drips) as server:
        stream: EventStream | None = await make(server).post_stream("/x", {}, Deadline(PATIENT))
        assert stream is not None
        await anext(stream)
        stream = None
        gc.collect()
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()


async def test_no_server(make: Make) -> None:
    """Nobody listens: a connection error that names the address."""
    async with Loopback(_silent) as server:
        url = server.url
    with pytest.raises(ConnectFailed, match=r"lab: no connection to http://127\.0\.0\.1:\d+/v1/x"):
        await make(url).post_json("/x", {}, Deadline(PATIENT))


async def test_a_server_that_hangs_up(make: Make) -> None:
    """The connection breaks before any answer."""

    async def handle(exchange: Exchange) -> None:
        exchange.cut()

    async with Loopback(handle) as server:
        with pytest.raises(ConnectFailed):
            await make(server).post_json("/x", {}, Deadline(PATIENT))


async def test_redirects_stay_at_home(make: Make) -> None:
    """Followed within the origin; to another host, neither the body nor the key goes along."""

    async def elsewhere(exchange: Exchange) -> None:
        await exchange.json_answer({"here": True})

    async with Loopback(elsewhere) as other:

        async def handle(exchange: Exchange) -> None:
            if exchange.path.endswith("/same"):
                await exchange.send(307, headers={"location": "/v1/there"})
            elif exchange.path.endswith("/there"):
                await exchange.json_answer({"there": exchange.json})
            elif exchange.path.endswith("/loop"):
                await exchange.send(307, headers={"location": "/v1/loop"})
            else:
                await exchange.send(307, headers={"location": other.url + "/x"})

        async with Loopback(handle) as server:
            client = make(server)
            reply = await client.post_json("/same", {"a": 1}, Deadline(PATIENT))
            assert reply.data == {"there": {"a": 1}}
            with pytest.raises(BadAnswer, match="redirects to another host"):
                await client.post_json("/away", {}, Deadline(PATIENT))
            with pytest.raises(BadAnswer, match="redirects"):
                await client.post_json("/loop", {}, Deadline(PATIENT))
            assert other.seen == []
            got = await client.send(Call("GET", "/away"), Deadline(PATIENT))
            assert await got.read() == b'{"here": true}'
            assert "authorization" not in other.seen[0].headers


@pytest.mark.parametrize("key", ["sk-abc\n", "sk abc", "sk-é"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    """A trailing newline is the usual mistake."""
    with pytest.raises(ConfigError, match="newline") as caught:
        HttpClient(ProviderConfig("lab", "generic", "http://h/v1", env_key="LAB", api_key=key))
    assert key.strip() not in str(caught.value)


async def test_an_illegal_header_does_not_show_its_value() -> None:
    """The library's own error would name the value."""

    async with Loopback(_silent) as server:
        client = HttpClient(
            ProviderConfig("lab", "generic", server.url, headers={"X-Secret": KEY + "\n"})
        )
        with pytest.raises(ConnectFailed) as caught:
            await client.post_json("/x", {}, Deadline(PATIENT))
        await client.aclose()
    error: BaseException | None = caught.value
    while error is not None:
        assert KEY not in repr(error)
        error = error.__cause__


async def test_nothing_outlives_a_closed_client() -> None:
    """Closing twice is fine; no task is left."""
    async with Loopback(answering(*chunks("a"))) as server:
        client = HttpClient(ProviderConfig("lab", "generic", server.url))
        await texts(await client.post_stream("/x", {}, Deadline(PATIENT)))
        await client.aclose()
        await client.aclose()
        assert client.supervisor.running == 0


async def test_raw_bodies_pass_both_ways(make: Make) -> None:
    """An async body goes out in pieces; the answer's bytes come as they are."""

    async def handle(exchange: Exchange) -> None:
        await exchange.send(200, exchange.body[::-1], kind="application/octet-stream")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"def"

    async with Loopback(handle) as server:
        reply = await make(server).send(Call("POST", "/files", content=pieces()), Deadline(PATIENT))
        assert b"".join([part async for part in reply]) == b"fedcba"
        assert isinstance(reply.headers, httpx2.Headers)

"""Early exit in every form ends the upstream; nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute, report
from tests.client.world import MESSAGES, config, configured, plain
from tests.support.loopback import Exchange, Loopback, chunk, chunks

TRANSPORTS = [openai.DefaultAsyncHttpxClient, openai.DefaultAioHttpClient]


async def endless(exchange: Exchange) -> None:
    """Content for ever."""
    await exchange.start()
    while not exchange.gone.is_set():
        await exchange.piece(chunk("word "))
        await asyncio.sleep(0.005)


async def silent(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def begins(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(chunk("a"))
    await exchange.gone.wait()


async def collect() -> None:
    """Run the garbage collector. openai's generators hold each other and are finalised by the
    loop, so it takes a few turns before all is garbage."""
    for _ in range(10):
        await asyncio.sleep(0)
        gc.collect()


async def open_stream(client: Any) -> Any:
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    return stream


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("how", ["close", "aclose", "async with", "response.aclose", "del"])
async def test_leaving_a_stream_ends_its_upstream(how: str, kind: Any) -> None:
    """Within 100 ms (a generous half second on a busy machine)."""
    async with plain(endless, http_client=kind()) as (server, client):
        stream = await open_stream(client)
        if how == "async with":
            async with stream:
                pass
        elif how == "response.aclose":
            await stream.response.aclose()
        elif how == "del":
            del stream
            await collect()
        else:
            await getattr(stream, how)()
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("handler", [silent, begins])
@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_a_call_ends_its_upstream(handler: Any, stream: bool, kind: Any) -> None:
    """Before the headers, in the body, streamed or not; the report says so."""
    told: list[specroute.Report] = []
    async with plain(handler, http_client=kind(), on_report=told.append) as (server, client):

        async def call() -> None:
            got = await client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
            if stream:
                async for _ in got:
                    pass

        task = asyncio.create_task(call())
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()
    assert [(r.complete, r.attempts[-1].outcome) for r in told] == [(False, "cancelled")]


async def test_a_stream_never_read_and_dropped_ends_its_upstream() -> None:
    """Nothing of it was ever asked for."""
    async with plain(endless) as (server, client):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        del stream
        await collect()
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()


async def test_a_break_with_the_stream_held_is_bounded_and_then_ended() -> None:
    """The provider is not read ahead of the reader, and the idle watchdog ends what is held."""
    async with configured(endless, timeouts={"idle": 0.3}) as (server, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        async with asyncio.timeout(3):
            await server.seen[0].gone.wait()
        assert report(stream).error == "the stream was not read (timeouts.idle)"
        assert not report(stream).complete
        with pytest.raises(specroute.StreamAbandoned) as caught:
            async for _ in stream:
                pass
        assert isinstance(caught.value, openai.APIError)


async def test_idle_zero_never_ends_a_held_stream() -> None:
    """The watchdog can be switched off."""
    async with configured(endless, timeouts={"idle": 0}) as (server, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        await asyncio.sleep(0.2)  # Long enough for a watchdog that was on by mistake.
        assert not server.seen[0].gone.is_set()
        await stream.close()


async def test_run_ahead_is_bounded_by_the_connection() -> None:
    """A provider that sends without end is held back while nobody reads."""
    sent = {"bytes": 0}

    async def flood(exchange: Exchange) -> None:
        await exchange.start()
        piece = chunk("x" * 60_000)
        while not exchange.gone.is_set() and sent["bytes"] < 500_000_000:
            await exchange.piece(piece)
            sent["bytes"] += len(piece)

    async with plain(flood) as (_, client):
        stream = await open_stream(client)
        before = -1
        while before != sent["bytes"]:
            before = sent["bytes"]
            await asyncio.sleep(0.1)  # Until the sender has come to a stop.
        assert sent["bytes"] < 50_000_000
        await stream.close()


async def test_a_stream_closed_while_it_is_read() -> None:
    """Another task closes: the reader ends in a typed error, and nothing hangs."""
    async with plain(begins) as (server, client):
        stream = await open_stream(client)

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        await stream.response.aclose()
        async with asyncio.timeout(2):
            with pytest.raises((openai.OpenAIError, RuntimeError)):
                await task
            await server.seen[0].gone.wait()


async def test_closing_the_client_ends_what_it_has_open() -> None:
    """Streams that are still running go with it."""
    async with Loopback(endless) as server:
        client = AsyncSpecRoute(api_key="k", base_url=server.url)
        stream = await open_stream(client)
        await client.close()
        async with asyncio.timeout(0.5):
            await server.seen[0].gone.wait()
        assert client.router.supervisor.running == 0
        with pytest.raises(openai.OpenAIError):
            async for _ in stream:
                pass


async def test_a_dropped_client_closes_its_connections() -> None:
    """As openai's default client does."""

    async def whole(exchange: Exchange) -> None:
        await exchange.stream(chunks("a"))

    async with Loopback(whole) as server:
        client = AsyncSpecRoute(api_key="k", base_url=server.url)
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            pass
        assert len(server.open) == 1
        del client, stream
        await collect()
        async with asyncio.timeout(2):
            await server.seen[0].gone.wait()


async def test_nothing_is_left_after_many_calls() -> None:
    """Whole, streamed, closed early and cancelled: no task and no garbage stays."""

    async def mixed(exchange: Exchange) -> None:
        if exchange.json["model"] == "endless":
            await endless(exchange)
        else:
            await exchange.stream(chunks("a", "b"))

    async with Loopback(mixed) as server, AsyncSpecRoute(config=_any(server)) as client:

        async def one(number: int) -> None:
            kind = ("whole", "early")[number % 2]
            stream = await client.chat.completions.create(
                model="endless" if kind == "early" else "m", messages=MESSAGES, stream=True
            )
            async for _ in stream:
                if kind == "early":
                    break
            await stream.close()

        await asyncio.gather(*map(one, range(10)))
        before = len(asyncio.all_tasks())
        for _ in range(5):
            await asyncio.gather(*map(one, range(20)))
        async with asyncio.timeout(2):
            while len(server.tasks) > 0:
                await asyncio.wait(set(server.tasks))
        assert len(asyncio.all_tasks()) <= before
        assert client.router.supervisor.running == 0


def _any(server: Loopback) -> dict[str, Any]:
    return config(server.url, default_provider="lab")


def test_one_loop_after_another() -> None:
    """Clients made and closed in loops of their own leave nothing for the next."""

    async def once() -> str:
        async def whole(exchange: Exchange) -> None:
            await exchange.stream(chunks("a"))

        async with plain(whole) as (_, client):
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert [asyncio.run(once()) for _ in range(2)] == ["a", "a"]

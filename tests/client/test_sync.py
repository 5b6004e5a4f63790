"""``SpecRoute``: one loop thread behind any number of synchronous callers; nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest

import specroute
from specroute import Report, SpecRoute, report, reports
from tests.client.test_lifecycle import begins, endless, silent
from tests.client.world import MESSAGES, answer, config
from tests.support.loopback import Handler, Loopback


@asynccontextmanager
async def serving(handler: Handler = answer) -> AsyncIterator[Any]:
    """A server, and a function that runs synchronous work beside it."""
    async with Loopback(handler) as server:
        server.beside = asyncio.to_thread  # type: ignore[attr-defined]
        yield server


def loop_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "specroute"]


def ask(client: SpecRoute, **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "smart", "messages": MESSAGES, **more}  # type: ignore[arg-type]
    )


async def test_it_is_an_openai_with_reports() -> None:
    """Whole and streamed; ``report()``, ``reports()`` and ``on_report`` all see the call."""
    told: list[Report] = []
    async with serving() as server:

        def work() -> None:
            with SpecRoute(config=config(server.url), on_report=told.append) as client:
                assert isinstance(client, openai.OpenAI)
                with reports() as seen:
                    whole = ask(client)
                    stream = ask(client, stream=True)
                    text = "".join(c.choices[0].delta.content or "" for c in stream)
                assert (whole.choices[0].message.content, text) == ("Hello", "Hello")
                for each in (report(whole), report(stream), *seen):
                    assert (each.target, each.complete) == ("lab:lab-model", True)
                assert len(seen) == len(told) == 2
                assert client.warm_up() == []
                assert repr(client) == "SpecRoute('argument')"

        await server.beside(work)


async def test_from_config_and_with_options() -> None:
    """The constructor's other face, and copies that share the connections."""
    async with serving() as server:

        def work() -> None:
            with SpecRoute.from_config(config(server.url)) as client:
                copy = client.with_options(timeout=3, policy="balanced")
                assert copy.router is client.router
                assert ask(copy).choices[0].message.content == "Hello"
                with pytest.raises(specroute.ConfigError):
                    client.with_options(policy="no such")

        await server.beside(work)
        assert server.connections == 1


async def test_many_threads_share_a_client() -> None:
    """Fifty threads, each with calls whole and streamed."""
    async with serving() as server:

        def work() -> None:
            with SpecRoute(config=config(server.url)) as client, ThreadPoolExecutor(50) as pool:

                def one(number: int) -> str:
                    if number % 2:
                        return str(ask(client).choices[0].message.content)
                    with ask(client, stream=True) as stream:
                        return "".join(c.choices[0].delta.content or "" for c in stream)

                assert set(pool.map(one, range(200))) == {"Hello"}
                assert len(loop_threads()) == 1

        await server.beside(work)


async def test_the_last_close_ends_the_thread() -> None:
    """Two clients share it; closing twice is fine; a closed client says so."""
    async with serving() as server:

        def work() -> None:
            assert loop_threads() == []
            clients = [SpecRoute(config=config(server.url)) for _ in range(2)]
            assert loop_threads() == []
            for client in clients:
                ask(client)
            clients[0].close()
            clients[0].close()
            assert clients[0].is_closed()
            assert len(loop_threads()) == 1
            with pytest.raises(RuntimeError, match="closed"):
                ask(clients[0])
            assert ask(clients[1]).choices[0].message.content == "Hello"
            clients[1].close()
            assert loop_threads() == []
            SpecRoute(config=config(server.url)).close()
            assert loop_threads() == []

        await server.beside(work)


async def test_an_unclosed_client_leaks_nothing() -> None:
    """Dropped: its connection is closed and its thread ends."""
    async with serving() as server:
        await server.beside(lambda: ask(SpecRoute(config=config(server.url))))
        gc.collect()
        async with asyncio.timeout(5):
            await server.seen[0].gone.wait()
        for thread in loop_threads():
            await server.beside(lambda t=thread: t.join(5))
        assert loop_threads() == []


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", ["break", "close", "with", "drop unread"])
async def test_leaving_a_stream_ends_its_upstream(how: str, own: bool) -> None:
    """However it is left; with the user's own synchronous client, too."""
    async with serving(endless) as server:
        http = httpx2.Client() if own else None
        client = SpecRoute(config=config(server.url), http_client=http)

        def work() -> None:
            stream = ask(client, stream=True)
            if how == "break":
                for _ in stream:
                    break
            elif how == "close":
                next(iter(stream))
                stream.close()
            elif how == "with":
                with stream:
                    next(iter(stream))
            del stream

        await server.beside(work)
        gc.collect()
        async with asyncio.timeout(3):
            await server.seen[0].gone.wait()
        await server.beside(client.close)


@pytest.mark.parametrize("handler", [silent, begins])
async def test_closing_ends_calls_under_way(handler: Any) -> None:
    """A thread that still waits gets a clear error, and nothing hangs."""
    async with serving(handler) as server:
        client = SpecRoute(config=config(server.url))
        waiting = asyncio.create_task(asyncio.to_thread(lambda: list(ask(client, stream=True))))
        await server.arrived.wait()
        await server.beside(client.close)
        with pytest.raises((openai.OpenAIError, RuntimeError)):
            async with asyncio.timeout(3):
                await waiting
        assert loop_threads() == []


async def test_a_callback_that_would_wait_for_itself_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not a deadlock but an error that names the way out."""
    async with serving() as server:
        caught: list[BaseException] = []

        def again(_: Report) -> None:
            try:
                ask(client)
            except RuntimeError as error:
                caught.append(error)

        client = SpecRoute(config=config(server.url), on_report=again)
        await server.beside(lambda: ask(client))
        await server.beside(client.close)
    assert "use AsyncSpecRoute there" in str(caught[0])


async def test_an_interrupted_wait_is_cancelled() -> None:
    """Ctrl-C in the middle of a call ends its upstream."""
    async with serving(silent) as server:
        client = SpecRoute(config=config(server.url))
        thread = client._seam._thread.get()  # type: ignore[union-attr]

        def work() -> None:
            real: Callable[..., Any] = thread._start

            class Interrupted:
                def __init__(self, future: Any) -> None:
                    self.future, self.cancel = future, future.cancel

                def result(self) -> Any:
                    server_arrived.wait(5)
                    raise KeyboardInterrupt

            thread._start = lambda work: Interrupted(real(work))  # type: ignore
            try:
                with pytest.raises(KeyboardInterrupt):
                    ask(client)
            finally:
                thread._start = real  # type: ignore[method-assign]

        server_arrived = threading.Event()
        call = asyncio.create_task(asyncio.to_thread(work))
        await server.arrived.wait()
        server_arrived.set()
        await call
        async with asyncio.timeout(2):
            await server.seen[0].gone.wait()
        await server.beside(client.close)


def test_the_wrong_kind_of_http_client_is_refused() -> None:
    """An asynchronous one can't serve a synchronous client."""
    with pytest.raises(TypeError, match=r"must be an httpx2\.Client"):
        SpecRoute(api_key="k", base_url="http://h/v1", http_client=httpx2.AsyncClient())

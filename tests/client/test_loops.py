"""One ``AsyncSpecRoute`` on several loops, in several threads and in forked children."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specroute import AsyncSpecRoute, SpecRoute
from tests.client.world import MESSAGES, answer, config
from tests.support.forked import in_a_child, needs_fork
from tests.support.loopback import Loopback

# A loop that ends with connections still open leaves their sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*unclosed:ResourceWarning",
    "ignore:.*unclosed:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """They are collected here, not in the middle of another test."""
    yield
    gc.collect()


class Elsewhere:
    """A server on a loop of its own, so that the test may run and end loops as it likes."""

    def __enter__(self) -> Loopback:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = self.run(Loopback(answer).__aenter__())
        return self.server

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(5)

    def __exit__(self, *_: object) -> None:
        self.run(self.server.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def ask(client: AsyncSpecRoute) -> str:
    async def whole() -> str:
        got = await client.chat.completions.create(model="smart", messages=MESSAGES)
        return got.choices[0].message.content or ""

    async def streamed() -> str:
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    return "".join(await asyncio.gather(whole(), streamed()))


def test_one_client_over_one_loop_after_another() -> None:
    """A module's client and several ``asyncio.run``: each loop gets connections of its own."""
    with Elsewhere() as server:
        client = AsyncSpecRoute(config=config(server.url))
        assert [asyncio.run(ask(client)) for _ in range(3)] == ["HelloHello"] * 3
        asyncio.run(client.close())
        asyncio.run(client.close())


def test_one_client_over_loops_in_many_threads() -> None:
    """Loops that run at the same time don't disturb each other, and one close ends them all."""
    with Elsewhere() as server:
        client = AsyncSpecRoute(config=config(server.url))
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: asyncio.run(ask(client)), range(24))) == {"HelloHello"}

        async def close_with_another_loop_running() -> None:
            await ask(client)
            ready, done = threading.Event(), threading.Event()

            async def other() -> None:
                await ask(client)
                ready.set()
                await asyncio.to_thread(done.wait)

            thread = threading.Thread(target=lambda: asyncio.run(other()))
            thread.start()
            await asyncio.to_thread(ready.wait)
            await client.close()
            done.set()
            await asyncio.to_thread(thread.join)

        asyncio.run(close_with_another_loop_running())
        with pytest.raises(Exception, match=r"closed|Connection"):
            asyncio.run(ask(client))


def test_a_users_http_client_belongs_to_one_loop() -> None:
    """A second loop beside it is refused with what to do; one after it takes it over."""
    with Elsewhere() as server:
        http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
        client = AsyncSpecRoute(config=config(server.url), http_client=http)

        async def two() -> None:
            await ask(client)
            other = asyncio.to_thread(lambda: asyncio.run(ask(client)))
            with pytest.raises(RuntimeError, match="make one client for each loop"):
                await other

        asyncio.run(two())
        assert asyncio.run(ask(client)) == "HelloHello"
        asyncio.run(client.close())


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own() -> None:
    """Both clients go on in the child, and the parent's are as they were."""
    with Elsewhere() as server:
        client = AsyncSpecRoute(config=config(server.url))
        sync = SpecRoute(config=config(server.url))

        def ask_sync() -> str:
            got = sync.chat.completions.create(model="smart", messages=MESSAGES)
            return got.choices[0].message.content or ""

        assert (asyncio.run(ask(client)), ask_sync()) == ("HelloHello", "Hello")
        before = server.connections
        assert in_a_child(lambda: asyncio.run(ask(client)) + ask_sync()) == "HelloHelloHello"
        assert server.connections > before
        assert (asyncio.run(ask(client)), ask_sync()) == ("HelloHello", "Hello")

        def closing() -> str:
            sync.close()
            asyncio.run(client.close())
            return "closed"

        assert in_a_child(closing) == "closed"
        assert ask_sync() == "Hello"
        sync.close()
        asyncio.run(client.close())


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_child_can_not_have_it_is_told() -> None:
    """A stream that the parent began, and a client that the user made in the parent."""
    with Elsewhere() as server:
        sync = SpecRoute(config=config(server.url))
        stream = sync.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        said = in_a_child(lambda: str(list(stream)))
        assert "forked" in said
        stream.close()
        sync.close()
        own = SpecRoute(config=config(server.url), http_client=httpx2.Client())
        said = in_a_child(
            lambda: str(own.chat.completions.create(model="smart", messages=MESSAGES))
        )
        assert "make a client in the child" in said
        own.close()


def test_no_thread_and_no_loop_before_the_first_call() -> None:
    """Making a client is safe before a server forks its workers."""
    before = threading.active_count()
    client = SpecRoute(api_key="k", base_url="http://127.0.0.1:1/v1")
    assert threading.active_count() == before
    assert sys.getrefcount(client) > 0
    client.close()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_watches_the_config_itself(tmp_path: Path) -> None:
    """The parent's watcher does not run in the child."""
    with Elsewhere() as server:
        path = tmp_path / "specroute.toml"
        path.write_text(
            f'version = 1\n[providers.lab]\nbase_url = "{server.url}"\nenv_key = "LAB_KEY"\n'
            '[models.smart]\ntargets = ["lab:lab-model"]\n',
            encoding="utf-8",
        )
        sync = SpecRoute(config=path, watch=True)
        connections = sync._seam.connections

        def watched() -> str:
            sync.chat.completions.create(model="smart", messages=MESSAGES)
            task, thread = connections._watching, sync._seam._thread  # type: ignore[union-attr]
            return str(task is not None and task.get_loop() is thread.get().loop)

        assert watched() == "True"
        assert in_a_child(watched) == "True"
        sync.close()


def test_a_synchronous_client_inside_a_running_loop() -> None:
    """It blocks that loop for as long as it takes, and is not bound to it."""
    with Elsewhere() as server:
        sync = SpecRoute(config=config(server.url))

        async def inside() -> str:
            got = sync.chat.completions.create(model="smart", messages=MESSAGES)
            stream = sync.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
            text = "".join(c.choices[0].delta.content or "" for c in stream)
            return (got.choices[0].message.content or "") + text

        assert [asyncio.run(inside()) for _ in range(2)] == ["HelloHello"] * 2
        assert server.connections <= 2
        sync.close()

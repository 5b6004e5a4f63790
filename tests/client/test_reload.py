"""Hot reload: a new config is checked, then swapped; what is under way ends by the old one."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import specroute
from specroute import AsyncSpecRoute, SpecRoute
from specroute.config import Config, parse
from specroute.reloading import Watcher
from tests.client.world import KEYS, MESSAGES, answer
from tests.support.loopback import DONE, Exchange, Loopback, chunk


def tables(url: str, model: str = "one", **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "providers": {"lab": {"profile": "generic", "base_url": url, "env_key": "LAB_KEY"}},
        "models": {"smart": {"targets": [f"lab:{model}"]}},
        **more,
    }


def toml(url: str, model: str = "one") -> str:
    return (
        f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{url}"\n'
        f'env_key = "LAB_KEY"\n[models.smart]\ntargets = ["lab:{model}"]\n'
    )


async def ask(client: Any) -> None:
    await client.chat.completions.create(model="smart", messages=MESSAGES)


async def test_requests_go_by_the_new_config_from_then_on() -> None:
    """Another model at another address; copies of the client follow."""
    async with (
        Loopback(answer) as old,
        Loopback(answer) as new,
        AsyncSpecRoute(config=tables(old.url)) as client,
    ):
        copy = client.with_options(max_retries=0)
        await ask(client)
        assert client.reload(tables(new.url, "two")).source == "argument"
        await ask(client)
        await ask(copy)
        assert [e.json["model"] for e in old.seen] == ["one"]
        assert [e.json["model"] for e in new.seen] == ["two", "two"]


async def test_a_stream_under_way_ends_by_the_old_one() -> None:
    """Its provider may even be gone from the config."""
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(chunk("Hel"))
        await go_on.wait()
        await exchange.piece(chunk("lo"))
        await exchange.piece(DONE)
        await exchange.finish()

    async with (
        Loopback(slow) as old,
        Loopback(answer) as new,
        AsyncSpecRoute(config=tables(old.url)) as client,
    ):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        changed = tables(new.url)
        changed["providers"]["other"] = changed["providers"].pop("lab")
        changed["models"]["smart"]["targets"] = ["other:two"]
        client.reload(changed)
        await ask(client)
        go_on.set()
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        told = specroute.report(stream)
    assert (text, told.target, told.complete) == ("Hello", "lab:one", True)
    assert [e.json["model"] for e in new.seen] == ["two"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"version": 1, "modles": {}}, "modles"),
        ({"version": 1, "models": {"smart": {"targets": ["nowhere:x"]}}}, "nowhere"),
    ],
)
async def test_a_bad_config_changes_nothing(broken: dict[str, Any], said: str) -> None:
    """And says what is wrong with it."""
    async with Loopback(answer) as server, AsyncSpecRoute(config=tables(server.url)) as client:
        router = client.router
        with pytest.raises(specroute.ConfigError, match=said):
            client.reload(broken)
        assert client.router is router
        await ask(client)


async def test_the_store_stays() -> None:
    """What others share can't be swapped under them."""
    async with Loopback(answer) as server, AsyncSpecRoute(config=tables(server.url)) as client:
        with pytest.raises(specroute.ConfigError, match="store: can't be changed"):
            client.reload(tables(server.url, store={"kind": "file", "path": "x.db"}))
        await ask(client)


async def test_a_file_is_read_again(tmp_path: Path) -> None:
    """``reload()`` by itself; a client that has no source says so."""
    async with Loopback(answer) as server:
        path = tmp_path / "specroute.toml"
        path.write_text(toml(server.url))
        async with AsyncSpecRoute.from_config(path) as client:
            path.write_text(toml(server.url, "two"))
            client.reload()
            await ask(client)
        async with AsyncSpecRoute(config=parse(tables(server.url), environ=KEYS)) as client:
            with pytest.raises(specroute.ConfigError, match="pass the new one"):
                client.reload()
        async with AsyncSpecRoute(api_key="k", base_url=server.url) as client:
            with pytest.raises(specroute.ConfigError, match="no config"):
                client.reload()
            with pytest.raises(specroute.ConfigError, match="nothing to reload"):
                client.reload(tables(server.url))
    assert [e.json["model"] for e in server.seen] == ["two"]


async def test_what_has_not_changed_stays() -> None:
    """Health, measurements, drafts and what was learned of targets; not what has changed."""
    async with Loopback(answer) as server, Loopback(answer) as moved:

        def drafted(url: str, drafts: dict[str, Any]) -> dict[str, Any]:
            made = tables(url, drafts=drafts)
            made["models"]["smart"]["drafts"] = list(drafts)
            return made

        mini = {"kind": "remote", "provider": "lab", "model": "mini"}
        config = drafted(server.url, {"ngram": {"kind": "ngram"}, "mini": mini})
        async with AsyncSpecRoute(config=config) as client:
            old: Any = client.router
            pool = old.speculation.pool
            model = old.config.models["smart"]
            target = pool.target(model.targets[0], old.config.providers["lab"], model)
            drafters = {name: pool.drafter(name) for name in ("ngram", "mini")}

            client.reload(drafted(server.url, {"ngram": {"kind": "ngram"}, "mini": mini}))
            new: Any = client.router
            found = new.speculation.pool
            again = found.target(model.targets[0], new.config.providers["lab"], model)
            assert new is not old
            assert (new.health, new.supervisor) == (old.health, old.supervisor)
            assert new.speculation.measurements is old.speculation.measurements
            assert again.learned is target.learned
            assert {name: found.drafter(name) for name in drafters} == drafters

            client.reload(drafted(moved.url, {"ngram": {"kind": "ngram"}, "mini": mini}))
            last: Any = client.router
            pool = last.speculation.pool
            again = pool.target(model.targets[0], last.config.providers["lab"], model)
            assert again.learned is not target.learned
            assert pool.drafter("ngram") is drafters["ngram"]
            assert pool.drafter("mini") is not drafters["mini"]
            assert last.speculation.measurements is not old.speculation.measurements


class Drafter:
    """Notes that it was closed."""

    name, vocabulary = "gone", None

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def load(self) -> None: ...

    async def aclose(self) -> None:
        self.closed.set()


async def test_a_draft_that_went_is_freed_after_its_last_request() -> None:
    """Not under the request that may be using it."""
    answers = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await answers.wait()
        await answer(exchange)

    async with Loopback(slow) as server:
        config = tables(server.url, drafts={"gone": {"kind": "ngram"}})
        config["models"]["smart"]["drafts"] = ["gone"]
        config["models"]["smart"]["policy"] = {"preset": "fixed", "method": "plain"}
        async with AsyncSpecRoute(config=config) as client:
            drafter: Any = Drafter()
            router: Any = client.router
            router.speculation.pool._drafters["gone"] = drafter
            request = asyncio.create_task(ask(client))
            async with asyncio.timeout(5):
                while not server.seen:
                    await asyncio.wait([request], timeout=0.01)
                client.reload(tables(server.url))
                await asyncio.sleep(0)
                assert not drafter.closed.is_set()
                answers.set()
                await request
                await drafter.closed.wait()


async def test_a_watched_file_is_taken_when_it_has_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not while it is being written, not twice, and a wrong one not at all."""
    path = tmp_path / "specroute.toml"
    taken: list[Config] = []
    clock = [1_000]

    def write(text: str) -> None:
        path.write_text(text)
        clock[0] += 1
        os.utime(path, ns=(clock[0] * 10**9, clock[0] * 10**9))

    def read() -> Config:
        import tomllib

        return parse(tomllib.loads(path.read_text()), environ=KEYS)

    write(toml("http://h/v1"))
    watcher = Watcher(path, read, taken.append)
    assert not await watcher.look()
    write(toml("http://h/v1", "two"))
    assert [await watcher.look() for _ in range(3)] == [False, True, False]
    assert str(taken[0].models["smart"].targets[0]) == "lab:two"
    write("version = 2\n")
    with caplog.at_level(logging.WARNING, "specroute"):
        assert [await watcher.look() for _ in range(3)] == [False, False, False]
    assert "the config stays as it was" in caplog.text
    path.unlink()
    assert not await watcher.look()
    write(toml("http://h/v1", "three"))
    assert [await watcher.look() for _ in range(2)] == [False, True]
    assert len(taken) == 2


async def test_watching_goes_on_beside_requests(tmp_path: Path) -> None:
    """``watch=True`` needs a file, and ends with the client."""
    async with Loopback(answer) as server:
        path = tmp_path / "specroute.toml"
        path.write_text(toml(server.url))
        for make in (
            lambda: AsyncSpecRoute(config=path, watch=True),
            lambda: AsyncSpecRoute.from_config(path, watch=True),
        ):
            async with make() as client:
                await ask(client)
                await ask(client)
                assert client.router.supervisor.running == 1
            assert client.router.supervisor.running == 0
        with pytest.raises(specroute.ConfigError, match="only a config file can be watched"):
            AsyncSpecRoute(config=tables(server.url), watch=True)


async def test_the_synchronous_client_reloads_from_any_thread(tmp_path: Path) -> None:
    """Its loop thread takes the new config at its next request."""
    async with Loopback(answer) as server:

        def work() -> None:
            with SpecRoute(config=tables(server.url)) as client:
                client.chat.completions.create(model="smart", messages=MESSAGES)
                client.reload(tables(server.url, "two"))
                client.chat.completions.create(model="smart", messages=MESSAGES)

        await asyncio.to_thread(work)
    assert [e.json["model"] for e in server.seen] == ["one", "two"]


def test_a_reload_before_any_loop_runs() -> None:
    """Nothing is under way yet."""
    client = AsyncSpecRoute(config=tables("http://h/v1"))
    client.reload(tables("http://other/v1"))
    assert client.router.config.providers["lab"].base_url == "http://other/v1"

"""What operators see of shared measurements: the command, the proxy's metrics, the config."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specroute import AsyncSpecRoute
from specroute.cli import app
from specroute.config import parse
from specroute.config.view import effective
from specroute.errors import ConfigError
from specroute.sharing import Sharing, worker
from specroute.speculation.speculator import Speculator
from tests.serve.world import serving
from tests.sharing.world import Worker
from tests.support.redis_server import RedisServer

CONFIG = """
version = 1
[providers.lab]
profile = "vllm"
base_url = "http://10.0.0.5/v1"
env_key = ""
[providers.drafts]
profile = "vllm"
base_url = "http://10.0.0.6/v1"
env_key = ""
[drafts.small]
kind = "local"
model = "org/small"
[drafts.fleet]
kind = "remote"
provider = "drafts"
model = "org/small"
[models.smart]
targets = ["lab:big"]
drafts = ["small", "fleet"]
[store]
kind = "redis"
url = "{url}"
"""


def shown(path: Path, *more: str) -> Any:
    result = CliRunner().invoke(app, ["measurements", "--file", str(path), *more])
    assert result.exit_code == 0, result.output
    return result


async def test_the_command_shows_what_workers_know_together(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The figures that were left and what came after them; of a server that is away, it is said."""
    path = tmp_path / "specroute.toml"
    path.write_text(CONFIG.format(url=redis_server.url), encoding="utf-8")
    a = await Worker(redis_server.url).joins()
    a.answer(10)
    await a.visits(2)
    a.answer(10)
    await a.visits()
    found = await asyncio.to_thread(shown, path, "--json")
    await a.aclose()
    data = json.loads(found.stdout)
    assert data["file"] == "shared at 127.0.0.1"
    (accepted,) = [
        f for f in data["figures"] if f["figure"] == "acceptance" and f["class"].count("/")
    ]
    assert accepted["weight"] > 70
    path.write_text(CONFIG.format(url="redis://127.0.0.1:1/0"), encoding="utf-8")
    found = await asyncio.to_thread(shown, path)
    assert "can't be read" in found.stderr and "Nothing was measured yet" in found.stdout


async def test_the_proxys_metrics_say_whether_measurements_are_shared(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how much was told and heard."""
    monkeypatch.setattr(worker, "PERIOD_S", 0.02)
    tables = {
        "version": 1,
        "providers": {"lab": {"profile": "generic", "base_url": "http://127.0.0.1:1/v1"}},
        "models": {"smart": {"targets": ["lab:m"], "drafts": ["ngram"]}},
        "store": {"kind": "redis", "url": own_server.url},
    }
    async with serving(tables=tables) as served:
        router = served.app.state.proxy.router
        await router.warm_up()

        async def until(line: str) -> None:
            async with asyncio.timeout(10):
                while line not in (await served.http.get("/metrics")).text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        router.speculation.measurements.draft_time("ngram", 0.01)
        await until('specroute_shared_measurements{what="told"} 1.0')
        await until("specroute_measurements_shared 1.0")
        own_server.stop()
        await until("specroute_measurements_shared 0.0")


async def test_a_config_that_is_reloaded_goes_on_telling(redis_server: RedisServer) -> None:
    """As the same worker where nothing of what is measured has changed, else as another."""
    config: dict[str, Any] = {
        "version": 1,
        "providers": {"lab": {"profile": "vllm", "base_url": "http://127.0.0.1:1/v1"}},
        "models": {"smart": {"targets": ["lab:m"], "drafts": ["ngram"]}},
        "store": {"kind": "redis", "url": redis_server.url},
    }

    def sharing(client: AsyncSpecRoute) -> Sharing:
        found = client.router.speculation
        assert isinstance(found, Speculator) and found.sharing is not None
        return found.sharing

    async with AsyncSpecRoute(config=config) as client:
        router = client.router
        first = sharing(client)
        await first.met()
        same = router.successor(parse({**config, "budgets": {"daily": {"usd": 5}}}, "t", {}))
        assert isinstance(same.speculation, Speculator)
        assert same.speculation.sharing is first
        same.speculation.measurements.draft_time("ngram", 0.01)
        assert len(first._waiting) == 1
        models = {"smart": {"targets": ["lab:other"], "drafts": ["ngram"]}}
        other = same.successor(parse({**config, "models": models}, "t", {}))
        same.retire()
        assert isinstance(other.speculation, Speculator)
        assert other.speculation.sharing is not first
        await other.aclose()


def test_the_config_says_who_shares() -> None:
    """Only with Redis; the server's address is not shown."""
    store = {"kind": "redis", "url": "redis://10.0.0.7/0", "measurements": False, "host": "eu-1"}
    config = parse({"version": 1, "store": store}, "t", {})
    assert (config.store.measurements, config.store.host) == (False, "eu-1")
    assert effective(config)["store"] == {**store, "url": "***"}
    with pytest.raises(ConfigError, match="only for kind = 'redis'"):
        parse({"version": 1, "store": {"measurements": True}}, "t", {})

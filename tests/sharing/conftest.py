from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.world import KEYS
from tests.support.environment import clean
from tests.support.redis_server import RedisServer


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, address, config or measurement of the machine reaches a test."""
    clean(monkeypatch, tmp_path, KEYS)
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", "")


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(shared_server: RedisServer) -> RedisServer:
    """A server that has nothing yet."""
    shared_server.flush()
    return shared_server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """One that a test may stop."""
    with RedisServer() as server:
        yield server

"""The running servers, each started once, and how much is asked of them.

``LIVE_PROMPTS`` and ``LIVE_TOKENS`` set the size; ``make test-live`` passes them on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.live import servers, setup
from tests.live.prompts import PROMPTS
from tests.live.servers import Server

pytest.register_assert_rewrite("tests.live.checks")


def pytest_configure() -> None:
    """A run that is told to end stops its servers first, as one that is interrupted does."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@pytest.fixture(scope="session")
def prompts() -> tuple[str, ...]:
    return PROMPTS[: int(os.environ.get("LIVE_PROMPTS", "30"))]


@pytest.fixture(scope="session")
def tokens() -> int:
    return int(os.environ.get("LIVE_TOKENS", "32"))


def need(server: str) -> None:
    if why := setup.why_not(server):
        pytest.skip(why)


@pytest.fixture(scope="session")
def llama() -> Iterator[Server]:
    need("llama")
    with servers.llama() as server:
        yield server


@pytest.fixture(scope="session")
def vllm() -> Iterator[Server]:
    need("vllm")
    with servers.vllm() as server:
        yield server


@pytest.fixture(scope="session")
def llama_cpp_python() -> Iterator[Server]:
    need("llama-cpp-python")
    with servers.llama_cpp_python() as server:
        yield server

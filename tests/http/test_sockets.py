"""Connections as open files: bounds, queues, and looks at idle ones."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
import textwrap

import httpx2
import pytest

from specroute.config import ProviderConfig, Timeouts
from specroute.http import sockets
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.http.idle import look_quickly
from specroute.reference.running import ReferenceServer

SCRIPT = {"vocabulary": ["a", "b"], "answers": [{"text": "ab", "anywhere": True}]}


@pytest.mark.parametrize(
    ("files", "most", "kept"),
    [(None, 1000, 100), (20000, 1000, 100), (1024, 896, 100), (64, 16, 16)],
)
def test_a_client_leaves_files_to_the_rest_of_the_process(
    files: int | None, most: int, kept: int
) -> None:
    """At the usual limit of 1,024 files not all of 1,000 connections."""
    found = sockets.limits(files)
    assert (found.max_connections, found.max_keepalive_connections) == (most, kept)


def test_no_more_files_is_found_wherever_it_stands() -> None:
    """As a cause, in a group, behind a message that says nothing of it."""
    full = OSError(errno.EMFILE, "Too many open files")
    grouped = OSError("All connection attempts failed")
    grouped.__cause__ = ExceptionGroup("several", [OSError(errno.ECONNREFUSED, "refused"), full])
    outer = httpx2.ConnectError("All connection attempts failed")
    outer.__cause__ = grouped
    assert sockets.out_of_files(full)
    assert sockets.out_of_files(outer)
    assert not sockets.out_of_files(OSError(errno.ECONNREFUSED, "refused"))
    assert not sockets.out_of_files(None)


FULL = """
    import asyncio, resource, sys
    from specroute import AsyncSpecRoute

    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    config = {"version": 1, "models": {"m": {"targets": ["lab:script"]}},
              "providers": {"lab": {"profile": "reference", "base_url": sys.argv[1]}}}

    async def main():
        async with AsyncSpecRoute(config=config, max_retries=0) as client:
            async def one():
                said = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}])
                return said.choices[0].message.content
            if sys.argv[2] == "crowd":
                print(set(await asyncio.gather(*(one() for _ in range(100)))))
                return
            await one()  # Whatever is imported late is imported.
            held = []
            try:
                while True:
                    held.append(open("/dev/null"))
            except OSError:
                pass
            for found in await asyncio.gather(one(), one(), return_exceptions=True):
                print(found)

    asyncio.run(main())
"""


class Keeping(asyncio.Protocol):
    """A connection that is kept open after each answer."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.answers = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answers += 1
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


def run(url: str, what: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), url, what], capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout


def test_more_requests_than_files_wait_for_each_other() -> None:
    """100 at once in a process that leaves 32 to connections: none fails."""
    with ReferenceServer(SCRIPT, pace="tpot=5ms") as server:
        assert run(server.base_url, "crowd") == "{'ab'}\n"


def test_a_process_without_files_says_so() -> None:
    """Rather than that all connection attempts failed; an open connection goes on."""
    with ReferenceServer(SCRIPT) as server:
        said = run(server.base_url, "full")
    assert "the 160 open files it may have: raise ulimit -n" in said
    assert "ab\n" in said


async def test_an_idle_connection_that_its_server_closed_is_not_used_again() -> None:
    """Looked at quickly or not: the next request opens another one; an open one is used again."""
    made: list[Keeping] = []

    def keeping() -> Keeping:
        made.append(Keeping())
        return made[-1]

    listening = await asyncio.get_running_loop().create_server(keeping, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with look_quickly(httpx2.AsyncClient(trust_env=False)) as client:
        for _ in range(2):
            assert (await client.get(url)).json() == {}
        made[0].transport.close()
        await made[0].lost
        assert (await client.get(url)).json() == {}
        assert [each.answers for each in made] == [2, 1]
    await made[1].lost
    listening.close()


async def test_looks_at_idle_connections_are_in_effect() -> None:
    """The pool's streams are the quick ones, whatever httpx2's version."""
    with ReferenceServer(SCRIPT) as server:
        client = HttpClient(ProviderConfig("lab", "reference", server.base_url))
        await client.post_json(
            "completions", {"model": "script", "prompt": "a"}, Deadline(Timeouts())
        )
        pool = client.client._transport._pool  # type: ignore[attr-defined]
        (stream,) = [c._connection._network_stream for c in pool.connections]
        assert type(stream).__module__ == "specroute.http.idle"
        assert stream.get_extra_info("is_readable") is False
        assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"
        await client.aclose()
        assert stream.get_extra_info("is_readable") is True


def test_a_process_of_ours_may_raise_its_limit() -> None:
    """Towards what is wanted, never past the hard limit, never down."""
    code = """
        import json, resource
        from specroute.http import sockets
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
        print(json.dumps([sockets.raise_open_files(n) for n in (50, 200, 1000)]
              + list(resource.getrlimit(resource.RLIMIT_NOFILE))))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [100, 200, 300, 300, 300]

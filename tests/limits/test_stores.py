"""Stores: all or nothing, whoever asks; a file is shared by processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specroute.config import StoreConfig
from specroute.errors import StoreFailed
from specroute.store import FileStore, MemoryStore, Store, make_store
from specroute.store.redis import RedisStore
from specroute.store.window import DAY, MINUTE, Change, Want
from tests.support.forked import in_a_child, needs_fork

Make = Callable[[], Store]


@pytest.fixture(params=["memory", "file", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return MemoryStore
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
        return lambda: RedisStore(server.url)
    return lambda: FileStore(tmp_path / "folder" / "limits.sqlite3")


def rpm(limit: float, amount: float = 1.0) -> Want:
    return Want("lab/rpm", amount, limit, MINUTE)


async def test_all_wants_are_booked_or_none(make: Make) -> None:
    """The second does not fit: the first is as it was."""
    store = make()
    usd = Want("usd", 3.0, 2.0, DAY)
    refused = await store.take([rpm(1), usd], 100.0)
    assert refused is not None
    assert refused.want == usd
    assert await store.take([rpm(1)], 100.0) is None
    assert await store.take([rpm(1)], 100.0) is not None
    await store.aclose()


async def test_a_change_gives_room_back_and_old_slots_leave(make: Make) -> None:
    """Corrections count at once for the next taker; a minute later all is free."""
    store = make()
    assert await store.take([rpm(10, 8)], 100.0) is None
    assert await store.take([rpm(10, 8)], 101.0) is not None
    store.change([Change("lab/rpm", 100, -6.0), Change("nobody", 1, -1.0)])
    assert await store.take([rpm(10, 8)], 101.0) is None
    assert await store.take([rpm(10, 8)], 101.0) is not None
    assert await store.take([rpm(10, 10)], 200.0) is None
    store.change([Change("lab/rpm", 200, -99.0)])
    assert await store.take([rpm(10, 10)], 200.0) is None
    await store.aclose()
    await store.aclose()


async def test_a_thousand_callers_at_once(make: Make) -> None:
    """Exactly as many as fit get through."""
    store = make()
    found = await asyncio.gather(*(store.take([rpm(100)], 100.0) for _ in range(1000)))
    assert sum(refused is None for refused in found) == 100
    await store.aclose()


def test_loops_in_many_threads(make: Make) -> None:
    """One store behind eight event loops."""
    store = make()
    barrier = threading.Barrier(8)

    async def take() -> int:
        found = [await store.take([rpm(100)], 100.0) for _ in range(25)]
        return sum(refused is None for refused in found)

    def one(_: int) -> int:
        barrier.wait()
        return asyncio.run(take())

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 100
    asyncio.run(store.aclose())


WORKER = textwrap.dedent("""
    import asyncio, sys
    from specroute.store import FileStore
    from specroute.store.window import DAY, Change, Want

    async def main():
        store, got = FileStore(sys.argv[1]), 0
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(30):
            if await store.take([Want("usd", 0.03, 1.0, DAY)], 1e9) is None:
                got += 1
                store.change([Change("usd", DAY.slot(1e9), 0.02 - 0.03)])
        await store.aclose()
        print(got)
    asyncio.run(main())
""")


def test_four_processes_share_a_file(tmp_path: Path) -> None:
    """120 callers reserve 0.03, are billed 0.02 each, and never go over 1.00 together.
    They open the new file at the same time, too."""
    path = tmp_path / "limits.sqlite3"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for worker in workers:
        assert worker.stdout and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    got = sum(int(worker.communicate(timeout=60)[0]) for worker in workers)
    assert 1.0 - 4 * 0.03 < got * 0.02 <= 1.0
    left = asyncio.run(FileStore(path).take([Want("usd", 1.01 - got * 0.02, 1.0, DAY)], 1e9))
    assert left is not None
    assert left.used == pytest.approx(got * 0.02)


async def test_a_cancelled_taker_has_taken_nothing(tmp_path: Path) -> None:
    """Cancelled while the file is waited for: its room is given back."""
    store = FileStore(tmp_path / "limits.sqlite3")
    assert await store.take([rpm(10, 4)], 100.0) is None
    go = threading.Event()
    blocked = store._threads.submit(go.wait)
    waiting = asyncio.create_task(store.take([rpm(10, 6)], 100.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    assert blocked.result(5)
    assert await store.take([rpm(10, 6)], 100.0) is None
    await store.aclose()


async def test_a_file_that_can_not_be_used_is_an_error(tmp_path: Path) -> None:
    """No call leaves unlimited because the store is broken; changes are only logged."""
    (tmp_path / "no-db").write_text("not a database", encoding="utf-8")
    store = FileStore(tmp_path / "no-db")
    with pytest.raises(StoreFailed, match=r"no-db.*can't be kept"):
        await store.take([rpm(1)], 100.0)
    store.change([Change("lab/rpm", 100, 1.0)])
    await store.aclose()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_the_file_anew(tmp_path: Path) -> None:
    """What it takes counts for its parent, too."""
    store = FileStore(tmp_path / "limits.sqlite3")

    def take() -> str:
        return str(asyncio.run(store.take([rpm(2)], 100.0)))

    assert (take(), in_a_child(take)) == ("None", "None")
    assert "Refusal" in take()
    asyncio.run(store.aclose())


def test_which_store_a_config_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, a file, or the file in the user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert isinstance(make_store(StoreConfig()), MemoryStore)
    own = make_store(StoreConfig("file", str(tmp_path / "x")))
    usual = make_store(StoreConfig("file"))
    assert isinstance(own, FileStore) and isinstance(usual, FileStore)
    assert own.path == tmp_path / "x"
    assert usual.path.name == "limits.sqlite3"

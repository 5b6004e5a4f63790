"""A client measures what it does, over real connections, and finds it again after a restart."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.measured import Kept
from specroute.reference.running import ReferenceServer
from specroute.speculation.speculator import Speculator
from tests.engine.world import World, speculating

WORLD = World()
TRAFFIC = "completions#none/prose/256"


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(WORLD.script) as running:
        yield running


def speculator(client: AsyncSpecRoute) -> Speculator:
    found = client.router.speculation
    assert isinstance(found, Speculator)
    return found


async def ask(client: AsyncSpecRoute, n: int = 1, **more: Any) -> Any:
    answer = None
    for _ in range(n):
        stream = await client.completions.create(
            model="m", prompt="a b a", max_tokens=40, stream=True, temperature=0, **more
        )
        async for _ in stream:
            pass
        answer = report(stream)
    return answer


async def test_rounds_and_hand_overs_are_measured(server: ReferenceServer) -> None:
    """Of the request's class: acceptance, the scoring request by context and K, the pace of the
    stream that took over."""
    policy = {"preset": "fixed", "method": "score", "num_speculative_tokens": 3, "max_rounds": 2}
    async with speculating(WORLD, server, policy=policy) as client:
        done = await ask(client, 4)
        assert done.rounds == 2
        seen = speculator(client).measurements
        found = seen.snapshot("lab:chain", "table", TRAFFIC, "argmax")
        assert found.rounds_seen.judged[0] == pytest.approx(8, rel=0.05)
        assert found.round_time(20, 3) is not None
        assert found.tpot() is not None
        assert found.ttft() is not None
        assert found.failures is not None
        assert found.failures.mean < 0.2
        assert seen.targets["lab:chain"].in_flight == 0
        # Every answer was told to be over: changes are looked for in whole answers.
        assert all(not watch._open for r in seen.rounds.values() for watch in r._watch)


async def test_a_failed_request_is_no_longer_under_way(server: ReferenceServer) -> None:
    """Whatever it ended in."""
    async with speculating(WORLD, server) as client:
        with pytest.raises(Exception, match=r"."):
            await client.completions.create(
                model="m", prompt="a", max_tokens=5, extra_body={"n": "nonsense"}
            )
        assert speculator(client).measurements.targets["lab:chain"].in_flight == 0


async def test_measurements_survive_a_restart(
    server: ReferenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept at close, found by the next client of the same server."""
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    async with speculating(WORLD, server) as client:
        await ask(client, 3)
        before = speculator(client).measurements.snapshot("lab:chain", "table", TRAFFIC, "argmax")
        assert before.rounds_seen.weight > 0
    kept = json.loads((tmp_path / "measurements.json").read_text(encoding="utf-8"))
    assert "a b a" not in json.dumps(kept)
    async with speculating(WORLD, server) as client:
        after = speculator(client).measurements.snapshot("lab:chain", "table", TRAFFIC, "argmax")
        assert after.rounds_seen.rate == pytest.approx(before.rounds_seen.rate)
        assert after.rounds_seen.weight == pytest.approx(before.rounds_seen.weight, rel=0.01)


async def test_measurements_are_kept_while_the_client_lives(
    server: ReferenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every so often, by a task of the client's."""
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("specroute.speculation.speculator.KEEP_EVERY_S", 0.01)
    written, write = threading.Event(), Kept.write

    def writing(self: Kept, own: dict[str, Any]) -> Path | None:
        found = write(self, own)
        if found is not None:
            written.set()
        return found

    monkeypatch.setattr(Kept, "write", writing)
    async with speculating(WORLD, server) as client:
        await ask(client)
        assert await asyncio.to_thread(written.wait, 10)
        assert (tmp_path / "measurements.json").exists()


async def test_sampled_drafts_are_measured_by_their_temperature(server: ReferenceServer) -> None:
    """The request's own, where neither config nor plan sets one; with what the rules had to draw."""
    async with speculating(WORLD, server, k=3) as client:
        for _ in range(3):
            stream = await client.completions.create(
                model="m", prompt="a b a", max_tokens=30, stream=True, temperature=0.7, top_p=1,
                extra_body={"top_k": 0},
            )  # fmt: skip
            async for _ in stream:
                pass
        assert report(stream).rounds > 0
        seen = speculator(client).measurements
        (how,) = {key[2] for key in seen.rounds}
        found = seen.snapshot("lab:chain", "table", TRAFFIC, how)
        assert [t for t, _ in found.by_temperature] == [0.7]
        assert found.draws is not None


async def test_lanes_tell_when_a_plain_answer_begins(server: ReferenceServer) -> None:
    """Their first one is the target's own stream; how fast it goes on beside others is no measure
    of one alone."""
    async with speculating(WORLD, server, method="prefix", k=3) as client:
        await ask(client, 2)
        seen = speculator(client).measurements
        assert seen.targets["lab:chain"].ttft.seen > 0

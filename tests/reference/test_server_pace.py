"""The pace of a larger target: what a step, a prompt, a request and a crowd cost in time.

Lower bounds are strict, upper bounds generous: a loaded machine may be late, never early.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest

from specroute.reference.backend import Work
from specroute.reference.pace import Pace
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from tests.reference.raw import Http

pytestmark = pytest.mark.alone

SPEC: dict[str, Any] = {"vocabulary": ["a", "b"], "default": {"a": 1.0}}
LATE = 0.15
"""Seconds that a busy machine may add to any of these."""


def timed(api: Http, **body: Any) -> float:
    """Seconds of one unstreamed completion."""
    start = time.perf_counter()
    api.complete(**body)
    return time.perf_counter() - start


def best(api: Http, **body: Any) -> float:
    """The quickest of three: a pace is kept each time, a busy machine is late now and then."""
    return min(timed(api, **body) for _ in range(3))


def test_a_decode_step_takes_tpot() -> None:
    """Ten tokens at 20 ms take 200 ms, streamed or not; lateness doesn't add up."""
    with ReferenceServer(SPEC, pace="tpot=20ms") as server, Http(server) as api:
        assert 0.199 <= best(api, prompt="a", max_tokens=10) < 0.2 + LATE
        start = time.perf_counter()
        api.stream("/v1/completions", prompt="a", max_tokens=10)
        assert 0.199 <= time.perf_counter() - start < 0.2 + LATE
        assert 0.599 <= best(api, prompt="a", max_tokens=30) < 0.6 + LATE


async def test_tokens_arrive_one_by_one() -> None:
    """The gaps between chunks are steps, not one wait at the end."""
    with ReferenceServer(SPEC, pace="tpot=30ms,rtt=40ms") as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="x") as client:
            start = time.perf_counter()
            stream = await client.completions.create(
                model=server.model, prompt="a", max_tokens=6, stream=True
            )
            arrivals = [time.perf_counter() - start async for _ in stream]
    assert len(arrivals) == 6
    for n, arrival in enumerate(arrivals, 1):
        assert 0.039 + 0.03 * n <= arrival < 0.04 + 0.03 * n + LATE


def test_the_network_costs_once_a_request() -> None:
    """rtt is added to the answer, not to each token, and to every endpoint."""
    with ReferenceServer(SPEC, pace="rtt=100ms") as server, Http(server) as api:
        assert 0.099 <= best(api, prompt="a", max_tokens=20) < 0.1 + LATE
        start = time.perf_counter()
        api.post("/tokenize", prompt="a")
        assert 0.099 <= time.perf_counter() - start < 0.1 + LATE


def test_queueing_costs_once_a_request() -> None:
    """ttft comes before the first token only."""
    with ReferenceServer(SPEC, pace="ttft=100ms") as server, Http(server) as api:
        assert 0.099 <= best(api, prompt="a", max_tokens=20) < 0.1 + LATE


def test_prompts_cost_what_the_cache_doesnt_hold() -> None:
    """200 tokens at 1000/s take 200 ms; again, nothing; as an echo, 200 ms each time."""
    prompt = [0] * 199 + [1]
    with ReferenceServer(SPEC, pace="prefill=1000") as server, Http(server) as api:
        assert timed(api, prompt=prompt, max_tokens=1) >= 0.199
        assert best(api, prompt=prompt, max_tokens=1) < LATE
        for _ in range(2):
            assert timed(api, prompt=prompt, max_tokens=1, echo=True, logprobs=1) >= 0.199


def test_a_scoring_round_costs_network_prompt_and_one_step() -> None:
    """R + prefill + TPOT, whatever was drafted."""
    with (
        ReferenceServer(SPEC, pace="rtt=50ms,prefill=1000,tpot=40ms") as server,
        Http(server) as api,
    ):
        seconds = best(api, prompt=[0] * 100, max_tokens=1, echo=True, logprobs=1)
    assert 0.189 <= seconds < 0.19 + LATE


async def together(server: ReferenceServer, n: int, **body: Any) -> float:
    """Seconds until ``n`` completions that were sent at once are all there."""
    async with httpx2.AsyncClient(base_url=server.base_url, timeout=20) as client:
        start = time.perf_counter()
        answers = await asyncio.gather(
            *(client.post("/completions", json={"model": server.model, **body}) for _ in range(n))
        )
        assert {a.status_code for a in answers} == {200}
        return time.perf_counter() - start


async def test_what_runs_at_once_is_stepped_together() -> None:
    """Eight answers take a step or two longer than one, not eight times as long."""
    with ReferenceServer(SPEC, pace="tpot=25ms") as server:
        seconds = min([await together(server, 8, prompt="a", max_tokens=8) for _ in range(3)])
        assert server.server is not None
        assert server.server.engine.largest == 8
    assert 0.199 <= seconds < 0.2 + 0.05 + LATE


async def test_load_makes_steps_longer() -> None:
    """A step takes load · sequences once that is more than TPOT."""
    with ReferenceServer(SPEC, pace="tpot=10ms,load=10ms") as server, Http(server) as api:
        assert 0.049 <= best(api, prompt="a", max_tokens=5) < 0.05 + LATE
        assert timed(api, prompt="a", max_tokens=5, n=4) >= 0.199


class Slow(Script):
    """A script whose every step really takes 30 ms."""

    inline = False

    def run(self, works: Sequence[Work]) -> None:
        time.sleep(0.03)
        super().run(works)


def test_real_computing_is_inside_a_step() -> None:
    """30 ms of work in a 60 ms step cost nothing more, and nothing is overrun."""
    with ReferenceServer(Slow(SPEC), pace="tpot=60ms") as server, Http(server) as api:
        assert 0.299 <= best(api, prompt="a", max_tokens=5) < 0.3 + LATE
        assert min(record.overrun_s for record in server.log) == 0


def test_an_overrun_is_recorded() -> None:
    """30 ms of work in a 10 ms step are late by 20 ms a token, and the log says so."""
    with ReferenceServer(Slow(SPEC), pace="tpot=10ms") as server, Http(server) as api:
        assert timed(api, prompt="a", max_tokens=5) >= 0.149
        assert server.log[-1].overrun_s >= 0.099


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("", Pace()),
        ("tpot=40ms,rtt=0.01,prefill=1e4", Pace(tpot=0.04, rtt=0.01, prefill=10_000)),
        (" ttft = 1s , load=500ms ", Pace(ttft=1.0, load=0.5)),
    ],
)
def test_a_pace_as_text(text: str, pace: Pace) -> None:
    """Seconds, or milliseconds with ms; and back."""
    assert Pace.parse(text) == pace
    assert Pace.parse(str(pace)) == pace


@pytest.mark.parametrize(
    "text", ["tpot", "speed=1", "tpot=fast", "tpot=-1", "prefill=10ms", "rtt=nan"]
)
def test_a_bad_pace_is_named(text: str) -> None:
    """The part that can't be read stands in the message."""
    with pytest.raises(ValueError, match=f"got '{text}'"):
        Pace.parse(text)

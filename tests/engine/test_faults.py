"""Whatever fails, the answer is the plain one, continued from what was committed, or one error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Judge, Proxy

FAST = {"connect": 2, "first_token": 1.2, "stall": 0.6, "total": 10}


@pytest.fixture(scope="module")
def server() -> Any:
    with ReferenceServer(script()) as running:
        yield running


@asynccontextmanager
async def through(
    server: ReferenceServer,
    judge: Judge,
    *,
    method: str = "score",
    drafter: EchoDrafter | None = None,
    k: int = 4,
    **provider: Any,
) -> AsyncIterator[tuple[Any, Proxy]]:
    world = World(script())
    async with Proxy(server.base_url, judge) as proxy:
        made = drafter or EchoDrafter(world.spec, wrong=0.2)
        options = {"base_url": proxy.base_url, "timeouts": FAST, **provider}
        async with speculating(
            world, server, drafter=made, method=method, k=k, provider=options, max_retries=0
        ) as client:
            yield client, proxy


def nothing(path: str, body: Mapping[str, Any], n: int) -> None:
    return None


def scoring(path: str, body: Mapping[str, Any]) -> bool:
    return body.get("echo") is True


def on_score(fault: Fault, nth: int) -> Judge:
    """The fault for every scoring request from the ``nth`` on; the first is calibration's."""
    seen = 0

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        nonlocal seen
        if not scoring(path, body):
            return None
        seen += 1
        return fault if seen > nth else None

    return judge


# Drafts


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("method", ["score", "prefix"])
@pytest.mark.parametrize(
    "mode", ["load", "open", "raise", "crash", "empty", "long", "foreign", "bad_q", "short_q"]
)
async def test_a_draft_that_fails_leaves_the_plain_answer(
    server: ReferenceServer, mode: str, method: str, after: int
) -> None:
    """Whatever it raises or proposes, and whenever; the report says what happened."""
    if after and mode in ("load", "open"):
        return
    drafter = EchoDrafter(script(), mode=mode, after=after)
    async with through(server, nothing, drafter=drafter, method=method, k=2) as (client, _):
        got = await ask(client, max_tokens=40)
        assert (got.text, got.finish) == (TEXT, "stop")
        assert got.report is not None
        said = " ".join([got.report.plan_reason, *got.report.notes])
        if mode not in ("long", "empty") and drafter.proposals != after:
            assert "draft" in said or "weights" in said or got.report.rounds == 0
        if mode == "long":
            # Lanes ask for as much as all of them need, which is no more than the answer may have.
            most = 6 if method == "score" else 40
            assert max(k for s in drafter.sessions for k in s.calls) <= most
            assert got.report.drafted >= got.report.accepted
        assert drafter.open_sessions == 0


@pytest.mark.parametrize("method", ["score", "prefix"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_draft_that_hangs_is_not_waited_for(
    server: ReferenceServer, method: str, after: int
) -> None:
    """The plain call still has its time."""
    drafter = EchoDrafter(script(), mode="hang", after=after)
    async with through(server, nothing, drafter=drafter, method=method) as (client, _):
        got = await ask(client)
        assert (got.text, got.finish) == (TEXT, "stop")
        assert drafter.open_sessions == 0


# Scoring


def _drop_logprobs(data: Any) -> None:
    data["choices"][0]["logprobs"] = None


def _shorter(data: Any) -> None:
    for values in data["choices"][0]["logprobs"].values():
        del values[0]


def _uneven(data: Any) -> None:
    data["choices"][0]["logprobs"]["token_logprobs"].append(-0.1)


def _positive(data: Any) -> None:
    shown = data["choices"][0]["logprobs"]
    shown["token_logprobs"] = [0.7] * len(shown["tokens"])


def _null(data: Any) -> None:
    shown = data["choices"][0]["logprobs"]
    shown["token_logprobs"] = [None] * len(shown["tokens"])


def _no_alternatives(data: Any) -> None:
    shown = data["choices"][0]["logprobs"]
    shown["top_logprobs"] = [None] * len(shown["tokens"])


def _other_ids(data: Any) -> None:
    shown = data["choices"][0]["logprobs"]
    shown["tokens"] = ["token_id:1"] * len(shown["tokens"])


def _no_choices(data: Any) -> Any:
    return {**data, "choices": None}


def _wild(data: Any) -> Any:
    return {"choices": [{"logprobs": {"tokens": 3}}]}


EVIDENCE = {
    f.__name__.strip("_"): Fault("edit", value=f)
    for f in (
        _drop_logprobs,
        _shorter,
        _uneven,
        _positive,
        _null,
        _no_alternatives,
        _other_ids,
        _no_choices,
        _wild,
    )
}
CALLS = {
    "400": Fault("status", 400),
    "404": Fault("status", 404),
    "429": Fault("status", 429),
    "500": Fault("status", 500),
    "reset": Fault("reset"),
    "hang": Fault("hang"),
    "no JSON": Fault("text", value="<html>busy</html>"),
    "error in a 200": Fault("text", value='{"error": {"message": "no"}}'),
    "a list": Fault("text", value="[1, 2]"),
}


@pytest.mark.parametrize("nth", [1, 3], ids=["first round", "third round"])
@pytest.mark.parametrize("name", [*EVIDENCE, *CALLS])
async def test_scoring_that_fails_becomes_a_plain_answer(
    server: ReferenceServer, name: str, nth: int
) -> None:
    """Continued from the committed text, with the reason in the report; the next request doesn't
    try again."""
    fault = EVIDENCE.get(name) or CALLS[name]
    async with through(server, on_score(fault, nth)) as (client, proxy):
        for stream in (True, False):
            asked = proxy.count(scoring)
            got = await ask(client, stream=stream)
            assert (got.text, got.finish) == (TEXT, "stop")
            assert got.usage == (5, 27)
            report = got.report
            assert report is not None
            assert report.complete
            assert report.exactness == "exact-greedy" or report.method == "plain"
            if stream:
                assert report.notes or report.plan_reason
                assert (report.method == "score") == (nth == 3)
            else:
                assert report.method == "plain"
                assert proxy.count(scoring) == asked
                assert "trusted" in report.plan_reason or "calibrated" in report.plan_reason


# Lanes and the plain stream


def _prefilled(path: str, body: Mapping[str, Any]) -> bool:
    return bool(body.get("stream")) and len(body.get("prompt") or ()) > 5


@pytest.mark.parametrize(
    "fault",
    [*CALLS.values(), Fault("cut", after=2), Fault("silence", after=1)],
    ids=[*CALLS, "cut", "silence"],
)
async def test_lanes_that_fail_cost_nothing(server: ReferenceServer, fault: Fault) -> None:
    """The leading stream goes on, or a hand-over does, without a character lost or doubled."""
    seen = 0

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        nonlocal seen
        if not _prefilled(path, body):
            return None
        seen += 1
        return fault if seen <= 3 else None

    world = World(script())
    drafter = EchoDrafter(world.spec)
    async with through(server, judge, method="prefix", drafter=drafter) as (client, _):
        got = await ask(client)
        assert (got.text, got.finish, got.usage) == (TEXT, "stop", (5, 27))


@pytest.mark.parametrize("method", ["score", "prefix"])
@pytest.mark.parametrize(
    "fault", [Fault("cut", after=5), Fault("silence", after=5)], ids=["cut", "silence"]
)
async def test_a_stream_that_breaks_for_good_is_one_typed_error(
    server: ReferenceServer, method: str, fault: Fault
) -> None:
    """What was delivered is a beginning of the answer; then openai's own kind of error."""

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return fault if body.get("stream") else None

    drafter = EchoDrafter(script(), mode="raise", after=1)
    async with through(server, judge, method=method, drafter=drafter) as (client, _):
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "go"}], temperature=0, stream=True
        )
        text = ""
        with pytest.raises(openai.APIConnectionError):
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
        assert text
        assert TEXT.startswith(text)
        from specroute import report

        assert not report(stream).complete
        assert report(stream).error


async def test_a_server_that_dies_is_one_typed_error() -> None:
    """In the middle of scoring."""
    world = World(script())
    with ReferenceServer(script()) as dying:

        def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
            return Fault("reset") if n > 6 else None

        async with through(dying, judge, drafter=EchoDrafter(world.spec), k=1) as (client, _):
            with pytest.raises(openai.APIConnectionError):
                await ask(client)

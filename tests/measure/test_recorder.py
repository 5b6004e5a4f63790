"""``record`` writes a line a finished request: figures always, texts when asked, keys never."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specroute import AsyncSpecRoute
from specroute.config import Record, Shadow, parse
from specroute.errors import ConfigError
from specroute.overheard import Overheard
from specroute.recorder import Recorder
from specroute.reference.running import ReferenceServer
from specroute.router import Router
from specroute.types import Report
from tests.engine.world import World, chain, speculating

WORLD = World(chain(end=0.0))
KEY = "sk-not-to-be-seen"


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(WORLD.script) as running:
        yield running


def config(server: ReferenceServer, record: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": server.base_url,
                "headers": {"x-key": KEY},
                "prices": {"input": 1.0, "output": 4.0},
            }
        },
        "models": {"m": {"targets": ["lab:chain"]}},
        "record": record,
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def ask(client: AsyncSpecRoute, **more: Any) -> str:
    stream = await client.completions.create(
        model="m", prompt="a b a b a b", max_tokens=12, temperature=0, stream=True, **more
    )
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def test_a_plain_request_is_one_line(server: ReferenceServer, tmp_path: Path) -> None:
    """Written at close at the latest, without its texts."""
    path = tmp_path / "deep" / "traces.jsonl"
    async with AsyncSpecRoute(config=config(server, str(path))) as client:
        said = await ask(client)
    (line,) = lines(path)
    assert (line["v"], line["kind"], line["method"]) == (1, "request", "plain")
    assert line["target"] == "lab:chain"
    assert line["traffic"] == "completions#none/prose/256"
    assert line["answer_tokens"] == 12
    assert line["complete"]
    assert line["ttft_s"] <= line["total_s"]
    assert (line["usd_in"], line["usd_out"], line["usd_cached"]) == (1e-6, 4e-6, None)
    assert line["cost_usd"] == pytest.approx(line["prompt_tokens"] * 1e-6 + 12 * 4e-6)
    assert line["rounds"] == []
    assert [call[1:3] for call in line["calls"]] == [["plain", "ok"]]
    text = path.read_text(encoding="utf-8")
    assert said not in text
    assert "a b a" not in text
    assert KEY not in text


async def test_a_speculated_request_has_its_rounds(server: ReferenceServer, tmp_path: Path) -> None:
    """(drafted, accepted, judged, scoring and drafting seconds); they add up to the report's."""
    path = tmp_path / "traces.jsonl"
    reports: list[Report] = []
    async with speculating(WORLD, server, k=2, on_report=reports.append) as client:
        router = client.router
        record = Record(str(path), texts=True)
        router.recorder = Recorder(record, router.supervisor, router.routes.price_of)
        said = await ask(client)
    done = next(r for r in reports if r.method == "score")
    (line,) = lines(path)
    assert (line["id"], line["how"], line["drafter"]) == (done.id, "argmax", "table")
    assert line["rounds"]
    assert sum(each[1] for each in line["rounds"]) == done.accepted
    assert sum(each[0] for each in line["rounds"]) == done.drafted
    assert all(each[3] > 0 for each in line["rounds"])
    assert (line["prompt"], line["answer"]) == ("a b a b a b", said)
    assert line["messages"] is None


async def test_texts_of_plain_answers(server: ReferenceServer, tmp_path: Path) -> None:
    """Streamed or whole, as they were handed on."""
    path = tmp_path / "traces.jsonl"
    record = {"path": str(path), "texts": True}
    async with AsyncSpecRoute(config=config(server, record)) as client:
        streamed = await ask(client)
        whole = await client.completions.create(
            model="m", prompt="a b a b a b", max_tokens=12, temperature=0
        )
    assert [line["answer"] for line in lines(path)] == [streamed, whole.choices[0].text]


async def test_failed_requests_are_recorded_too(server: ReferenceServer, tmp_path: Path) -> None:
    """As what they were."""
    path = tmp_path / "traces.jsonl"
    async with AsyncSpecRoute(config=config(server, str(path)), max_retries=0) as client:
        with pytest.raises(Exception, match=r"."):
            await client.completions.create(model="m", prompt="a", max_tokens=-5)
    (line,) = lines(path)
    assert not line["complete"]
    assert line["calls"][0][2].startswith("status 4")


async def test_a_file_that_cannot_be_written_is_said_once(
    server: ReferenceServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered all the same."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING, "specroute"):
        async with AsyncSpecRoute(config=config(server, str(tmp_path / "file" / "x"))) as client:
            assert await ask(client)
    assert caplog.text.count("can't be recorded") == 1


def test_nothing_is_recorded_unless_asked_for(server: ReferenceServer) -> None:
    """No recorder, no listener."""
    without = config(server, None)
    del without["record"]
    assert Router(parse(without, environ={})).recorder is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"record": 5}, "record"),
        ({"record": {"texts": True}}, "record.path: required"),
        ({"record": {"path": "x", "text": True}}, "did you mean 'texts'"),
        ({"shadow": {"share": 2}}, "shadow.share: expected a share from 0 to 1"),
        ({"shadow": {"paid": "yes"}}, "shadow.paid"),
    ],
)
def test_what_is_wrong_is_said(table: dict[str, Any], problem: str) -> None:
    """With its path."""
    with pytest.raises(ConfigError, match=problem):
        parse({"version": 1, **table}, environ={})


def test_defaults() -> None:
    """Nothing recorded, a twentieth of a draft's time for shadows, nothing paid."""
    found = parse({"version": 1}, environ={})
    assert (found.record, found.shadow) == (None, Shadow(0.05, paid=False))
    assert parse({"version": 1, "record": "x"}, environ={}).record == Record("x")


@pytest.mark.parametrize(
    ("pieces", "text", "logprobs"),
    [
        ([b'data: {"choices":[{"index":0,"delta":{"content":"He"}}]}\n\n',
          b'data: {"choices":[{"index":0,"delta":{"content":"llo"}}]}\n\n'], "Hello", None),
        ([b'data: {"choices":[{"index":0,"text":"Hi","logprobs":'
          b'{"tokens":["Hi"],"token_logprobs":[-0.5]}}]}\n\n'], "Hi", (("Hi", -0.5),)),
        ([b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":'
          b'{"content":[{"token":"Hi","logprob":-0.25}]}}]}\n\n'], "Hi", (("Hi", -0.25),)),
        ([b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n'], None, None),
        ([b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n'], None, None),
    ],
)  # fmt: skip
def test_an_answer_is_read_from_what_was_handed_on(
    pieces: list[bytes], text: str | None, logprobs: Any
) -> None:
    """The first choice's text alone, and its tokens' log-probabilities where they are shown."""
    heard = Overheard()
    for piece in pieces:
        heard.chunk(piece)
    found = heard.read()
    assert (None if found is None else found.text) == text
    if found is not None:
        assert found.logprobs == logprobs

"""Sending a batch: order, errors, waits, the last plain attempt."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import specroute
from specroute.batch import BatchItem, Progress, run_batch
from specroute.batch.items import read_requests
from specroute.batch.journal import Journal
from specroute.types import Report
from tests.client.world import configured, plain
from tests.support.loopback import Exchange, completion


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "smart", "messages": [{"role": "user", "content": text}], **fields}


def asked(exchange: Exchange) -> str:
    return str(exchange.json["messages"][0]["content"])


async def echo(exchange: Exchange) -> None:
    await exchange.json_answer(completion(f"re: {asked(exchange)}"))


async def test_items_come_in_the_order_of_the_requests() -> None:
    """Whatever was answered first."""
    waiting: list[asyncio.Event] = []

    async def last_first(exchange: Exchange) -> None:
        ready = asyncio.Event()
        waiting.append(ready)
        if len(waiting) == 3:
            ready.set()
        await ready.wait()
        await echo(exchange)
        waiting.remove(ready)
        if waiting:
            waiting[-1].set()

    async with configured(last_first) as (_, client):
        result = await client.batch([chat("a"), chat("b"), chat("c")])
    assert [item.text for item in result] == ["re: a", "re: b", "re: c"]
    assert all(item.ok and item.report.method == "plain" for item in result)


async def test_no_more_than_concurrency_are_under_way() -> None:
    """A worker takes the next request when its own is answered."""
    now, most = 0, 0

    async def counted(exchange: Exchange) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        await echo(exchange)

    async with configured(counted) as (_, client):
        result = await client.batch([chat(str(i)) for i in range(40)], concurrency=4)
    assert len(result) == 40 and most <= 4


async def test_one_failure_is_one_item() -> None:
    """A refused request has its error; the others their answers; it is not asked again."""

    async def picky(exchange: Exchange) -> None:
        if asked(exchange) == "bad":
            await exchange.json_answer({"error": {"message": "too long", "code": "len"}}, 400)
        else:
            await echo(exchange)

    async with configured(picky) as (server, client):
        result = await client.batch([chat("a"), chat("bad"), chat("c")])
    assert [item.ok for item in result] == [True, False, True]
    (failed,) = result.failed
    assert (failed.status, failed.attempts, failed.error["code"]) == (400, 1, "len")
    assert "too long" in failed.error["message"]
    assert len(server.seen) == 3


async def test_a_429_holds_back_every_request_for_that_model() -> None:
    """Nothing is sent before the time that the provider asked for has passed."""
    times: list[float] = []

    async def busy_once(exchange: Exchange) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            await exchange.json_answer(
                {"error": {"message": "slow down"}}, 429, {"retry-after-ms": "300"}
            )
        else:
            await echo(exchange)

    async with configured(busy_once) as (_, client):
        result = await client.batch([chat(str(i)) for i in range(5)], concurrency=1)
    assert all(item.ok for item in result)
    assert times[1] - times[0] >= 0.29
    assert [item.attempts for item in result] == [2, 1, 1, 1, 1]


async def test_the_last_attempt_is_plain() -> None:
    """The policy asked for, and at last a plain call; nothing is retried within an attempt."""

    class Broken:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def post(self, path: str, *, cast_to: Any, body: Any, options: Any) -> Any:
            self.asked.append((body["specroute"]["policy"], options))
            request = httpx2.Request("POST", "http://127.0.0.1/v1")
            response = httpx2.Response(500, headers={"retry-after-ms": "1"}, request=request)
            raise openai.InternalServerError("oops", response=response, body=None)

    sender = Broken()
    (item,) = await run_batch(sender, [chat("a")], attempts=3, method="score", timeout=10)
    assert (item.status, item.attempts) == (500, 3)
    score, plain_ = ({"preset": "fixed", "method": method} for method in ("score", "plain"))
    assert [policy for policy, _ in sender.asked] == [score, score, plain_]
    assert [options["timeout"] for _, options in sender.asked] == [10, 20, 40]
    assert {options["max_retries"] for _, options in sender.asked} == {0}


async def test_a_timeout_doubles_from_attempt_to_attempt() -> None:
    """A request that is too slow at first is answered by a later attempt."""
    tries = 0

    async def slow_at_first(exchange: Exchange) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await exchange.gone.wait()
        else:
            await echo(exchange)

    async with plain(slow_at_first) as (_, client):
        (item,) = await client.batch([chat("a")], timeout=0.2)
    assert (item.text, item.attempts) == ("re: a", 2)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, {"message": "no such key"}), (429, {"message": "pay", "code": "insufficient_quota"})],
)
async def test_a_refused_key_or_an_empty_account_ends_a_model_at_once(
    status: int, error: Any
) -> None:
    """The other requests for that model are not sent; those for another are."""

    async def refusing(exchange: Exchange) -> None:
        if exchange.json["model"] == "lab-model":
            await exchange.json_answer({"error": error}, status)
        else:
            await echo(exchange)

    async with configured(refusing) as (server, client):
        requests = [chat(str(i)) for i in range(10)] + [chat("x", model="lab:other")]
        result = await client.batch(requests, concurrency=1)
    assert [item.ok for item in result] == [False] * 10 + [True]
    assert len(server.seen) == 2
    assert {item.attempts for item in result[1:10]} == {0}


async def test_a_wrong_batch_is_an_openai_error_and_sends_nothing() -> None:
    """Checked whole before the first request leaves."""
    async with configured(echo) as (server, client):
        with pytest.raises(openai.BadRequestError, match="stream must be false") as caught:
            await client.batch([chat("a"), chat("b", stream=True)])
        assert isinstance(caught.value, specroute.RequestError)
        with pytest.raises(openai.BadRequestError, match="concurrency must be"):
            await client.batch([chat("a")], concurrency=0)
        with pytest.raises(openai.BadRequestError, match="not both"):
            await client.batch([chat("a")], method="plain", policy="fixed")
    assert server.seen == []


async def test_progress_is_told_of_every_item() -> None:
    """The caller's function gets the item and the counts."""
    seen: list[tuple[str, int]] = []

    def watch(item: BatchItem, so_far: Progress) -> None:
        seen.append((item.text or "", so_far.done))

    async with configured(echo) as (_, client):
        await client.batch([chat("a"), chat("b")], concurrency=1, progress=watch)
    assert seen == [("re: a", 1), ("re: b", 2)]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ([0.5, 0.25], "$0.7500"),
        ([None, None], "cost unknown"),
        ([0.5, None], "$0.5000 and unknown"),
    ],
)
def test_a_cost_that_isnt_known_is_not_shown_as_nothing(
    costs: list[float | None], said: str
) -> None:
    """In the progress bar, as everywhere."""
    so_far = Progress(2)
    assert so_far.cost == "$0.0000"
    for cost in costs:
        so_far = so_far.after(BatchItem("x", body={}, report=Report("r", "m", cost_usd=cost)))
    assert so_far.cost == said


async def test_a_journal_spares_what_was_answered(tmp_path: Path) -> None:
    """A second run with more requests asks only for the new ones and what had failed."""
    fail = True

    async def handler(exchange: Exchange) -> None:
        if asked(exchange) == "b" and fail:
            await exchange.json_answer({"error": {"message": "no"}}, 400)
        else:
            await echo(exchange)

    path = tmp_path / "runs" / "batch.journal"
    async with configured(handler) as (server, client):
        first = await client.batch([chat("a"), chat("b")], journal=path)
        fail = False
        second = await client.batch([chat("c"), chat("a"), chat("b")], journal=path)
    assert [item.ok for item in first] == [True, False]
    assert [item.text for item in second] == ["re: c", "re: a", "re: b"]
    assert [item.resumed for item in second] == [False, True, False]
    assert sorted(map(asked, server.seen)) == ["a", "b", "b", "c"]


async def test_a_changed_request_is_asked_again_under_the_same_id(tmp_path: Path) -> None:
    """A journal's answer counts only for the very same body."""
    path = tmp_path / "batch.journal"

    def line(text: str) -> dict[str, Any]:
        return {"custom_id": "only", "url": "/v1/chat/completions", "body": chat(text)}

    async with configured(echo) as (_, client):
        await client.batch([line("old")], journal=path)
        (item,) = await client.batch([line("new")], journal=path)
    assert item.text == "re: new"


async def test_a_half_written_line_is_dropped(tmp_path: Path) -> None:
    """The process died while it wrote: the rest of the journal counts."""
    path = tmp_path / "batch.journal"
    async with configured(echo) as (server, client):
        await client.batch([chat("a"), chat("b")], journal=path, concurrency=1)
        data = path.read_bytes()
        path.write_bytes(data[:-20])
        result = await client.batch([chat("a"), chat("b")], journal=path)
    assert [item.resumed for item in result] == [True, False]
    assert sorted(map(asked, server.seen)) == ["a", "b", "b"]
    for entry in path.read_text().splitlines():
        json.loads(entry)


async def test_no_line_follows_half_a_line(tmp_path: Path) -> None:
    """A disk that was full for a moment loses one answer, not the journal."""
    path = tmp_path / "batch.journal"
    lost, kept = read_requests([chat("a"), chat("b")])
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with Journal(path) as journal:
            room = path.stat().st_size + 30
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
            with pytest.raises(specroute.StoreFailed, match="can't be written"):
                journal.ended(lost, BatchItem(lost.custom_id, body={"a": 1}, status=200))
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            journal.ended(kept, BatchItem(kept.custom_id, body={"b": 2}, status=200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signal_before)
    with Journal(path) as journal:
        assert journal.answered(lost) is None
        found = journal.answered(kept)
    assert found is not None and found.body == {"b": 2}


async def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    """Given by mistake, it is neither read as one nor written to."""
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary\n")
    async with configured(echo) as (_, client):
        with pytest.raises(specroute.RequestError, match="is not a batch journal: line 1"):
            await client.batch([chat("a")], journal=path)
    assert path.read_text() == "Dear diary\n"


async def test_two_runs_never_share_a_journal(tmp_path: Path) -> None:
    """The second one says so at once."""
    path = tmp_path / "batch.journal"
    second: list[BaseException] = []

    async def handler(exchange: Exchange) -> None:
        if not second:
            try:
                await client.batch([chat("b")], journal=path)
            except specroute.RequestError as error:
                second.append(error)
        await echo(exchange)

    async with configured(handler) as (_, client):
        await client.batch([chat("a")], journal=path)
    assert "in use by another run" in str(second[0])

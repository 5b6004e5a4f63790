"""A provider's own Batch API: upload, poll, download, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

import specroute
from specroute import AsyncSpecRoute
from tests.client.world import KEYS
from tests.support.loopback import Exchange, Loopback, completion


class Batches:
    """/files and /batches as OpenAI's reference describes them, in memory."""

    def __init__(self, looks: int = 2) -> None:
        self.looks = looks
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.refuse: set[str] = set()
        self.status = "completed"
        self.fail_looks = 0
        self.drop: str | None = None
        self.seen: list[Exchange] = []
        self.looked = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        path = exchange.path.removeprefix("/v1")
        if self.drop == f"{exchange.method} {path}":
            self.drop = None
            if exchange.method == "POST" and path == "/batches":
                self._create(exchange.json)
            exchange.cut()
        elif exchange.method == "POST" and path == "/files":
            name = f"file-{len(self.files)}"
            (content,) = re.findall(rb"\r\n\r\n(\{.*\}\n)\r\n--", exchange.body, flags=re.S)
            self.files[name] = content
            file = {"id": name, "object": "file", "bytes": 1, "created_at": 0, "filename": "f"}
            await exchange.json_answer({**file, "purpose": "batch", "status": "processed"})
        elif exchange.method == "POST":
            await exchange.json_answer(self._create(exchange.json))
        elif path == "/batches":
            jobs = list(self.jobs.values())
            await exchange.json_answer({"object": "list", "data": jobs, "has_more": False})
        elif path.endswith("/content"):
            content = self.files.get(path.split("/")[2], b"")
            if content:
                await exchange.send(200, content, kind="application/jsonl")
            else:
                await exchange.json_answer({"error": {"message": "no such file"}}, 404)
        elif (job := self.jobs.get(path.rpartition("/")[2])) is None:
            await exchange.json_answer({"error": {"message": "no such batch"}}, 404)
        else:
            await self._look(exchange, job)

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"batch-{len(self.jobs)}"
        self.jobs[name] = job = {
            "id": name,
            "object": "batch",
            "created_at": 0,
            "status": "validating",
            **asked,
        }
        return job

    async def _look(self, exchange: Exchange, job: dict[str, Any]) -> None:
        self.looked.set()
        if self.fail_looks:
            self.fail_looks -= 1
            await exchange.json_answer({"error": {"message": "later"}}, 503)
            return
        job["looks"] = job.get("looks", 0) + 1
        if job["looks"] > self.looks and job["status"] not in ("completed", self.status):
            self._finish(job)
        await exchange.json_answer(job)

    def _finish(self, job: dict[str, Any]) -> None:
        job["status"] = self.status
        good, bad = b"", b""
        for line in self.files[job["input_file_id"]].split(b"\n")[:-1]:
            request = json.loads(line)
            question = request["body"]["messages"][0]["content"]
            head = {"id": "x", "custom_id": request["custom_id"]}
            if question in self.refuse:
                error = {"error": {"message": "no", "code": "bad"}}
                response = {"status_code": 400, "request_id": "r", "body": error}
                bad += json.dumps({**head, "response": response, "error": None}).encode() + b"\n"
            elif not (self.status == "expired" and question == "late"):
                body = completion(f"{request['body']['model']}: {question}")
                response = {"status_code": 200, "request_id": "r", "body": body}
                entry = {**head, "response": response, "error": None}
                good += json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        for field, content in (("output_file_id", good), ("error_file_id", bad)):
            if content:
                name = f"file-{len(self.files)}"
                self.files[name] = content
                job[field] = name


def chat(text: str, model: str = "smart") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def client_of(url: str, **provider: Any) -> AsyncSpecRoute:
    lab = {"profile": "generic", "base_url": url, "env_key": "LAB_KEY", **provider}
    tables = {
        "version": 1,
        "providers": {"lab": {"capabilities": {"batch_api": True}, **lab}},
        "models": {"smart": {"targets": ["lab:big"]}, "quick": {"targets": ["lab:small"]}},
    }
    return AsyncSpecRoute(config=tables)


async def test_a_job_is_uploaded_polled_and_downloaded() -> None:
    """Items in order, by the target's own model name and key; a refusal is its item's error."""
    api = Batches()
    api.refuse = {"b"}
    async with Loopback(api) as server, client_of(server.url) as client:
        result = await client.batch_job([chat("a"), chat("b"), chat("c")], poll_s=0.01)
    assert [item.text for item in result] == ["big: a", None, "big: c"]
    (failed,) = result.failed
    assert (failed.status, failed.error) == (400, {"code": "bad", "message": "no"})
    (job,) = api.jobs.values()
    assert (job["endpoint"], job["completion_window"]) == ("/v1/chat/completions", "24h")
    assert {e.headers["authorization"] for e in api.seen} == {f"Bearer {KEYS['LAB_KEY']}"}
    assert "openai-organization" not in api.seen[0].headers


@pytest.mark.parametrize("end", ["\u2028", "\u0085"])
async def test_an_answer_may_hold_what_else_ends_a_line(end: str) -> None:
    """Only a line feed ends a line of the provider's file."""
    api = Batches()
    async with Loopback(api) as server, client_of(server.url) as client:
        (item,) = await client.batch_job([chat(f"a{end}b")], poll_s=0.01)
    assert item.text == f"big: a{end}b"


async def test_each_model_is_a_job_of_its_own() -> None:
    """One job may hold one model; the items stay in order."""
    api = Batches()
    async with Loopback(api) as server, client_of(server.url) as client:
        asked = [chat("a"), chat("b", "quick"), chat("c")]
        result = await client.batch_job(asked, poll_s=0.01, metadata={"team": "x"})
    assert [item.text for item in result] == ["big: a", "small: b", "big: c"]
    assert [job["metadata"]["team"] for job in api.jobs.values()] == ["x", "x"]


async def test_what_an_expired_job_did_not_answer_is_an_error() -> None:
    """The rest of it counts."""
    api = Batches()
    api.status = "expired"
    async with Loopback(api) as server, client_of(server.url) as client:
        result = await client.batch_job([chat("a"), chat("late")], poll_s=0.01)
    assert [item.ok for item in result] == [True, False]
    assert result[1].error["code"] == "batch_expired"


async def test_what_an_expired_job_did_not_answer_is_asked_for_in_another(tmp_path: Path) -> None:
    """By the next run with its journal, and nothing else is."""
    api = Batches(looks=0)
    api.status = "expired"
    path = tmp_path / "job.journal"
    async with Loopback(api) as server, client_of(server.url) as client:
        first = await client.batch_job([chat("a"), chat("late")], journal=path, poll_s=0.01)
        api.status = "completed"
        second = await client.batch_job([chat("a"), chat("late")], journal=path, poll_s=0.01)
    assert [item.ok for item in first] == [True, False]
    assert [item.text for item in second] == ["big: a", "big: late"]
    assert [item.resumed for item in second] == [True, False]
    assert api.files["file-2"].count(b"\n") == 1


async def test_a_job_that_fails_says_why() -> None:
    """The provider's words are in every item."""
    api = Batches()
    api.status = "failed"

    def finish(job: dict[str, Any]) -> None:
        job["status"] = "failed"
        job["errors"] = {"object": "list", "data": [{"code": "x", "message": "bad line 1"}]}

    api._finish = finish  # type: ignore[method-assign]
    async with Loopback(api) as server, client_of(server.url) as client:
        (item,) = await client.batch_job([chat("a")], poll_s=0.01)
    assert item.error["code"] == "batch_failed" and "bad line 1" in item.error["message"]


async def test_looks_that_fail_are_repeated() -> None:
    """The job is not lost for it."""
    api = Batches()
    api.fail_looks = 4
    async with Loopback(api) as server, client_of(server.url) as client:
        (item,) = await client.batch_job([chat("a")], poll_s=0.01)
    assert item.text == "big: a"


async def test_a_run_that_ended_takes_its_job_up_again(tmp_path: Path) -> None:
    """No second upload, no second job; with answers of some, only the others are waited for."""
    api = Batches(looks=10**9)
    path = tmp_path / "job.journal"
    asked = [chat("a"), chat("b")]
    async with Loopback(api) as server:
        async with client_of(server.url) as client:
            run = asyncio.create_task(client.batch_job(asked, journal=path, poll_s=0.01))
            await api.looked.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        api.looks = 0
        async with client_of(server.url) as client:
            result = await client.batch_job([chat("new"), *asked], journal=path, poll_s=0.01)
            again = await client.batch_job([chat("new"), *asked], journal=path, poll_s=0.01)
    assert [item.text for item in result] == ["big: new", "big: a", "big: b"]
    assert [item.resumed for item in again] == [True, True, True]
    assert len(api.jobs) == 2  # the first, and the new request's


async def test_a_job_that_its_provider_has_forgotten_is_said_and_made_anew(tmp_path: Path) -> None:
    """The run ends with an error for each of its requests; the next one asks again."""
    api = Batches(looks=10**9)
    path = tmp_path / "job.journal"
    async with Loopback(api) as server:
        async with client_of(server.url) as client:
            run = asyncio.create_task(client.batch_job([chat("a")], journal=path, poll_s=0.01))
            await api.looked.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        forgotten = dict(api.jobs)
        api.jobs.clear()
        async with client_of(server.url) as client:
            (item,) = await client.batch_job([chat("a")], journal=path, poll_s=0.01)
            assert item.error is not None and item.error["code"] == "batch_unknown"
            assert "no longer knows the job batch-0 (404)" in item.error["message"]
            api.looks = 0
            (item,) = await client.batch_job([chat("a")], journal=path, poll_s=0.01)
    assert (item.text, len(forgotten), len(api.jobs)) == ("big: a", 1, 1)


async def test_answers_that_are_kept_no_longer_are_said_and_asked_for_anew(tmp_path: Path) -> None:
    """What its job's other file holds counts, and so do the batch's other jobs."""
    api = Batches(looks=0)
    api.refuse = {"b"}
    path = tmp_path / "job.journal"
    asked = [chat("a"), chat("b"), chat("c", "quick")]
    finish = api._finish

    def forgetful(job: dict[str, Any]) -> None:
        finish(job)
        if job.get("error_file_id"):
            api.files[job["output_file_id"]] = b""

    api._finish = forgetful  # type: ignore[method-assign]
    async with Loopback(api) as server, client_of(server.url) as client:
        a, b, c = await client.batch_job(asked, journal=path, poll_s=0.01)
        assert a.error is not None and a.error["code"] == "batch_unknown"
        assert "of the job batch-" in a.error["message"]
        assert (b.status, c.text) == (400, "small: c")
        api.refuse = set()
        again = await client.batch_job(asked, journal=path, poll_s=0.01)
    assert [item.text for item in again] == ["big: a", "big: b", "small: c"]
    assert [item.resumed for item in again] == [False, False, True]


async def test_a_job_whose_id_never_came_is_found_again(tmp_path: Path) -> None:
    """Made, but the connection broke before its answer: found by what is written in it."""
    api = Batches(looks=0)
    path = tmp_path / "job.journal"
    async with Loopback(api) as server:
        lab = client_of(server.url)
        async with lab as client:
            api.drop = "POST /batches"
            place = specroute.batch.place.place_of(client.router.routes, "smart")
            place.client.max_retries = 0

            async def once() -> Any:
                from specroute.batch import run_jobs

                return await run_jobs(
                    lambda _: place, [chat("a")], journal=path, poll_s=0.01, progress=False
                )

            with pytest.raises(openai.APIConnectionError):
                await once()
            (item,) = await once()
    assert item.text == "big: a"
    assert len(api.jobs) == 1


async def test_a_provider_without_a_batch_api_is_refused() -> None:
    """Before anything is sent, with what to do."""
    async with Loopback(Batches()) as server, client_of(server.url, capabilities={}) as client:
        with pytest.raises(openai.BadRequestError, match="not known to have a Batch API"):
            await client.batch_job([chat("a")])
    assert server.seen == []

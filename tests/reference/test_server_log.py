"""The access log is the bill: it says what usage says, also of what was cut short."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from specroute.reference.backend import Work
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from tests.reference.raw import Http, messages

pytestmark = pytest.mark.alone

SPEC: dict[str, Any] = {"vocabulary": ["a", "b"], "default": {"a": 1.0}}


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(SPEC) as server:
        yield server


@pytest.fixture
def api(server: ReferenceServer) -> Iterator[Http]:
    with Http(server) as api:
        yield api


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "ab"},
        {"prompt": [0, 1, 0], "echo": True, "logprobs": 1},
        {"prompt": ["a", "bb", "bab"], "n": 2},
        {"prompt": ["a", "bbb"], "echo": True, "logprobs": 0, "max_tokens": 0},
        {"messages": messages("ab"), "max_tokens": 3},
        {"messages": messages("abba"), "n": 3, "max_tokens": 3},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_usage_and_log_agree(api: Http, body: dict[str, Any], stream: bool) -> None:
    """To the token, for every kind of request; the record is there when the answer is."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    if stream:
        usage = api.stream(path, stream_options={"include_usage": True}, **body)[-1]["usage"]
    else:
        usage = api.post(path, **body).json()["usage"]
    record = api.server.log[-1]
    assert usage["prompt_tokens"] == record.prompt_tokens
    assert usage["completion_tokens"] == record.completion_tokens
    assert usage["prompt_tokens_details"]["cached_tokens"] == record.cached_tokens
    assert record.charged_prompt_tokens == record.prompt_tokens - record.cached_tokens
    assert record.echo == body.get("echo", False)
    assert record.stream == stream
    assert (record.status, record.cancelled, record.path) == (200, False, path)


def test_refusals_are_recorded(api: Http) -> None:
    """With status and reason, and no tokens."""
    answer = api.post("/v1/completions", prompt="a", n=0)
    record = api.server.log[-1]
    assert record.status == answer.status_code == 400
    assert record.id == answer.headers["x-request-id"]
    assert record.error == answer.json()["error"]["message"]
    assert record.prompt_tokens == record.completion_tokens == 0


def test_every_answer_has_its_id(api: Http) -> None:
    """x-request-id, also on errors and unknown paths."""
    answers = [
        api.get("/health"),
        api.get("/nowhere"),
        api.get("/v1/completions"),
        api.post("/v1/completions", prompt="a", stream=True),
    ]
    assert [a.status_code for a in answers] == [200, 404, 405, 200]
    assert [r.id for r in api.server.log[-4:]] == [a.headers["x-request-id"] for a in answers]


def test_connections_are_reused_and_told_apart(server: ReferenceServer) -> None:
    """Requests on one kept-alive connection show the same client address."""
    with Http(server) as one, Http(server) as other:
        for api in (one, one, other, one):
            api.stream("/v1/completions", prompt="a", max_tokens=3)
    addresses = [r.connection for r in server.log[-4:]]
    assert addresses[0] == addresses[1] == addresses[3] != addresses[2]


async def test_a_stream_that_is_left_is_cancelled() -> None:
    """Work stops within a step; what was generated until then is what the log says."""
    with ReferenceServer(SPEC, pace="tpot=20ms") as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="x") as client:
            stream = await client.chat.completions.create(
                model=server.model, messages=[{"role": "user", "content": "a"}], stream=True
            )
            seen = 0
            async for chunk in stream:
                seen += bool(chunk.choices[0].delta.content)
                if seen == 3:
                    break
            left = time.perf_counter()
            await stream.close()
        [record] = server.wait_for(lambda log: len(log) == 1)
        assert time.perf_counter() - left < 1
        assert (record.status, record.cancelled) == (499, True)
        assert record.finish_reasons == ["cancelled"]
        assert 3 <= record.completion_tokens <= 3 + 5
        assert record.charged_prompt_tokens == record.prompt_tokens > 0
        with Http(server) as api:
            api.complete(prompt="a", max_tokens=5)
        assert server.server is not None
        assert server.server.engine.largest == 1  # nobody else was still being stepped


def test_a_request_that_was_never_looked_at_costs_nothing() -> None:
    """Left while it was queueing: no token was computed."""
    with ReferenceServer(SPEC, pace="ttft=60") as server:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(
                f"{server.base_url}/completions",
                json={"model": server.model, "prompt": "aaa"},
                timeout=0.2,
            )
        [record] = server.wait_for(lambda log: len(log) == 1)
    assert record.cancelled
    assert (record.prompt_tokens, record.charged_prompt_tokens) == (3, 0)
    assert record.completion_tokens == 0


def test_an_unstreamed_answer_that_is_left_is_cancelled() -> None:
    """The client's timeout ends the work as well."""
    with ReferenceServer(SPEC, pace="tpot=20ms") as server:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(
                f"{server.base_url}/completions",
                json={"model": server.model, "prompt": "a", "max_tokens": 1000},
                timeout=0.2,
            )
        [record] = server.wait_for(lambda log: len(log) == 1)
    assert record.cancelled
    assert 1 <= record.completion_tokens < 100


async def test_a_server_that_stops_cuts_its_streams() -> None:
    """The client sees a broken answer, never a complete one; the record says cancelled."""
    with ReferenceServer(SPEC, pace="tpot=20ms") as server:
        async with httpx2.AsyncClient() as client:
            body = {"model": server.model, "prompt": "a", "max_tokens": 1000, "stream": True}
            with pytest.raises(httpx2.TransportError):
                async with client.stream("POST", f"{server.base_url}/completions", json=body) as s:
                    async for _ in s.aiter_bytes():
                        server.stop()
    [record] = server.log
    assert record.cancelled


class Breaking(Script):
    """A script whose second step fails, once."""

    steps = 0

    def run(self, works: Sequence[Work]) -> None:
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("out of memory")
        super().run(works)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_fails_ends_its_requests_only(stream: bool) -> None:
    """A 500, or an error event in the stream and no [DONE]; the next request is answered."""
    with ReferenceServer(Breaking(SPEC)) as server, Http(server) as api:
        answer = api.post("/v1/completions", prompt="a", max_tokens=5, stream=stream)
        if stream:
            *_, last = answer.text.strip().split("\n\n")
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 500
            error = answer.json()["error"]
        assert error["message"] == "the model failed: RuntimeError: out of memory"
        assert api.complete(prompt="a", max_tokens=2)["choices"][0]["text"] == "aa"
    assert [r.status for r in server.log] == [500, 200]
    assert server.log[0].completion_tokens == 1
    assert server.log[0].finish_reasons == ["error"]


def test_a_process_of_its_own_logs_alike() -> None:
    """The same records, the same options, another process."""
    options: dict[str, Any] = {"names": ["x"], "seed": 5, "disable": ["n"], "api_key": "k"}
    answers = []
    for process in (False, True):
        spec = {**SPEC, "default": {"a": 0.5, "b": 0.5}}
        with ReferenceServer(spec, process=process, **options) as server:
            client = openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0)
            with client:
                answer = client.completions.create(model="x", prompt="ab", max_tokens=40)
                with pytest.raises(openai.BadRequestError):
                    client.completions.create(model="x", prompt="ab", n=2)
            record = server.wait_for(lambda log: len(log) == 2)[0]
            assert answer.usage is not None
            assert record.completion_tokens == answer.usage.completion_tokens
            answers.append((server.model, answer.choices[0].text, record.prompt_tokens))
    assert answers[0] == answers[1]


def test_the_command_line(tmp_path: Path) -> None:
    """It says where it listens, appends records to the file, and ends on a signal."""
    script, log = tmp_path / "tiny.json", tmp_path / "log.jsonl"
    script.write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "specroute.reference", "--script", str(script)]
    with subprocess.Popen(
        [*command, "--port", "0", "--log", str(log)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        assert line.endswith("/v1 model tiny\n")
        url = line.split()[2].removesuffix("/v1")
        with urllib.request.urlopen(f"{url}/health") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    [record] = [json.loads(line) for line in log.read_text().splitlines()]
    assert record["path"] == "/health"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--script", "nowhere.toml"], "can't read the script nowhere.toml"),
        (["--script", "x.txt"], "expected a model's folder or a .toml or .json script"),
        (["--pace", "speed=1"], "pace: expected one of ttft, tpot"),
        (["--disable", "eco"], "disable: unknown 'eco'"),
    ],
)
def test_a_bad_command_line_is_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and what is wrong, without a traceback."""
    from specroute.reference.__main__ import main

    assert main(flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1

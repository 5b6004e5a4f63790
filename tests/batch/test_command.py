"""`specroute batch`: its files, and what it says when they can't be used."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from specroute.batch import BatchItem
from specroute.cli import app
from specroute.errors import RequestError, StoreFailed
from tests.support.loopback import Exchange, Loopback, completion


def line(custom_id: str) -> str:
    body = {"model": "smart", "messages": [{"role": "user", "content": custom_id}]}
    whole = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(whole) + "\n"


async def echo(exchange: Exchange) -> None:
    await exchange.json_answer(completion(f"re: {exchange.json['messages'][0]['content']}"))


def config(folder: Path, url: str) -> str:
    file = folder / "specroute.toml"
    file.write_text(
        f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{url}"\nenv_key = ""\n'
        'capabilities = { batch_api = true }\n[models.smart]\ntargets = ["lab:toy"]\n'
    )
    return str(file)


async def command(server: Loopback, source: Path, out: Path, *more: str) -> Result:
    made = config(source.parent, server.url)
    arguments = ["batch", str(source), "-o", str(out), "-f", made, "-q", *more]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


def answers(out: Path) -> dict[str, Any]:
    entries = map(json.loads, out.read_text().split("\n")[:-1])
    return {entry["custom_id"]: entry for entry in entries}


@pytest.mark.parametrize(
    "content",
    [
        line("a") + line("b"),
        (line("a") + line("b")).replace("\n", "\r\n"),
        "\ufeff" + line("a") + line("b"),
        "\n" + line("a") + "   \n" + line("b").rstrip("\n"),
    ],
    ids=["plain", "CRLF", "byte order mark", "blank lines"],
)
async def test_files_as_editors_leave_them_are_read(tmp_path: Path, content: str) -> None:
    """Every line with something in it is a request."""
    source, out = tmp_path / "in.jsonl", tmp_path / "new" / "out.jsonl"
    source.write_text(content, encoding="utf-8", newline="")
    async with Loopback(echo) as server:
        ended = await command(server, source, out)
    assert ended.exit_code == 0, ended.output
    texts = {
        name: entry["response"]["body"]["choices"][0]["message"]["content"]
        for name, entry in answers(out).items()
    }
    assert texts == {"a": "re: a", "b": "re: b"}


@pytest.mark.parametrize(
    ("out", "journal", "said"),
    [
        ("in.jsonl", "j", "is the requests"),
        ("out.jsonl", "out.jsonl", "is the journal"),
        ("folder", "j", "is a folder"),
        ("in.jsonl/out.jsonl", "j", "can't be written"),
        ("/proc/out.jsonl", "j", "can't be written"),
    ],
)
async def test_a_place_that_cant_hold_the_answers_is_refused_unpaid(
    tmp_path: Path, out: str, journal: str, said: str
) -> None:
    """Before a request leaves, and nothing is overwritten."""
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"))
    (tmp_path / "folder").mkdir()
    async with Loopback(echo) as server:
        ended = await command(server, source, tmp_path / out, "--journal", str(tmp_path / journal))
    assert isinstance(ended.exception, RequestError) and said in str(ended.exception)
    assert server.seen == []
    assert source.read_text() == line("a")


async def test_a_full_disk_ends_the_run_and_a_later_one_goes_on(tmp_path: Path) -> None:
    """A sentence, exit status 2, and no answer that is in the journal is paid for again."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(f"line {i}") for i in range(30)))

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    async with Loopback(echo) as server:
        words = [sys.executable, "-m", "specroute.cli", "batch", str(source), "-o", str(out)]
        words += ["-f", config(tmp_path, server.url), "--concurrency", "2"]
        process = await asyncio.create_subprocess_exec(
            *words, preexec_fn=small_files, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert (process.returncode, said.count(b"\n")) == (2, 1), said
        assert b"can't be written: [Errno 27]" in said and b"same journal" in said
        before = len(server.seen)
        ended = await command(server, source, out)
    assert ended.exit_code == 0, ended.output
    assert len(answers(out)) == 30
    assert 0 < before < 30 and len(server.seen) <= 30 + 2


async def test_answers_that_cant_be_written_are_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before stays, nothing half is left, and the next run pays for nothing."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a"))
    out.write_text("before")

    def full(self: BatchItem) -> Any:
        raise OSError(28, "No space left on device")

    async with Loopback(echo) as server:
        with monkeypatch.context() as patched:
            patched.setattr(BatchItem, "line", full)
            ended = await command(server, source, out)
        assert isinstance(ended.exception, StoreFailed)
        assert "out.jsonl.journal" in str(ended.exception)
        assert not out.with_name("out.jsonl.part").exists()
        assert out.read_text() == "before"
        ended = await command(server, source, out)
    assert list(answers(out)) == ["a"] and len(server.seen) == 1


async def test_a_refusal_stands_where_clients_of_the_format_look(tmp_path: Path) -> None:
    """The status and the words in the response, the words in the error as well; exit status 1."""

    async def refuses(exchange: Exchange) -> None:
        said = {"error": {"message": "too long", "code": "context_length_exceeded"}}
        await exchange.json_answer(said, 400, {"x-request-id": "req-7"})

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a"))
    async with Loopback(refuses) as server:
        ended = await command(server, source, out)
    assert ended.exit_code == 1
    entry = answers(out)["a"]
    assert entry["error"]["code"] == "context_length_exceeded"
    assert entry["response"] == {
        "status_code": 400,
        "request_id": "req-7",
        "body": {"error": entry["error"]},
    }


async def test_a_batch_api_that_isnt_there_is_a_sentence(tmp_path: Path) -> None:
    """Not a traceback."""

    async def missing(exchange: Exchange) -> None:
        await exchange.json_answer({"error": {"message": "no such path"}}, 404)

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a"))
    async with Loopback(missing) as server:
        ended = await command(server, source, out, "--job")
    assert isinstance(ended.exception, RequestError) and "no such path" in str(ended.exception)


async def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    """Exit status 130; the next run asks for the rest."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a") + line("b"))
    held, arrived = asyncio.Event(), asyncio.Event()

    async def second_waits(exchange: Exchange) -> None:
        if len(server.seen) == 2:
            arrived.set()
            await held.wait()
        await echo(exchange)

    async with Loopback(second_waits) as server:
        words = [sys.executable, "-m", "specroute.cli", "batch", str(source), "-o", str(out)]
        words += ["-f", config(tmp_path, server.url), "--concurrency", "1"]
        # A test run that a shell has put into the background has interrupts switched off.
        process = await asyncio.create_subprocess_exec(
            *words,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        await arrived.wait()
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        held.set()
        assert process.returncode == 130
        assert b"run the same command again" in said and said.count(b"\n") == 1
        ended = await command(server, source, out)
    assert ended.exit_code == 0 and list(answers(out)) == ["a", "b"]
    assert len(server.seen) == 3

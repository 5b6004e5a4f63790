"""The fault server: each fault is what its name says, on the wire, and the records tell of it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx2
import pytest

from specroute.testing import HEALTHY, Exchange, FaultServer, On, Sometimes, faults

BODY = {"model": "any", "messages": [{"role": "user", "content": "go"}], "temperature": 0}
TEXT = "one two three four five"


async def post(server: FaultServer, stream: bool = False, path: str = "/chat/completions") -> Any:
    async with httpx2.AsyncClient(timeout=5) as client:
        return await client.post(server.base_url + path, json={**BODY, "stream": stream})


def words(content: bytes) -> str:
    """The text of a stream."""
    out = ""
    for line in content.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices") or ():
                out += (choice.get("delta") or {}).get("content") or ""
    return out


async def received(server: FaultServer, stream: bool = True) -> tuple[bytes, str]:
    """The raw bytes that come back over one connection, and how they ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.root.rsplit(":", 1)[1]))
    body = json.dumps({**BODY, "stream": stream}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    got = b""
    try:
        async with asyncio.timeout(0.2):
            while data := await reader.read(65536):
                got += data
    except TimeoutError:
        end = "open"
    except ConnectionResetError:
        end = "reset"
    else:
        end = "closed"
    finally:
        writer.close()
    return got, end


async def test_without_a_script_it_is_a_healthy_server() -> None:
    """Whole and streamed, the answer is the toy model's, under any model name."""
    async with FaultServer(answer=TEXT) as server:
        whole = (await post(server)).json()
        assert whole["choices"][0]["message"]["content"] == TEXT
        assert whole["model"] == "any"
        streamed = (await post(server, True)).content
        assert words(streamed) == TEXT
        assert streamed.endswith(b"data: [DONE]\n\n")
        assert [r.fault for r in server.requests] == [None, None]
        assert server.under_way == 0
        assert sum(r.completion_tokens for r in server.bill) == 12


async def test_a_text_prompt_is_answered_and_continued() -> None:
    """The answer begins after any prompt, and goes on where a prompt ends with its beginning."""
    async with FaultServer(answer=TEXT) as server, httpx2.AsyncClient() as client:
        for prompt, rest in (("Count!", TEXT), ("Count! one two", " three four five")):
            body = {"model": "m", "prompt": prompt, "max_tokens": 64}
            got = (await client.post(server.base_url + "/completions", json=body)).json()
            assert got["choices"][0]["text"] == rest
            assert got["choices"][0]["finish_reason"] == "stop"


async def test_faults_come_in_turn_then_health() -> None:
    """A bare fault is for one chat or completions request; other paths don't use it up."""
    async with FaultServer(faults.status(500), HEALTHY, faults.rate_limited(2)) as server:
        async with httpx2.AsyncClient() as client:
            assert (await client.get(server.base_url + "/models")).status_code == 200
        seen = [await post(server) for _ in range(4)]
        assert [r.status_code for r in seen] == [500, 200, 429, 200]
        assert seen[2].headers["retry-after"] == "2"
        assert [r.fault for r in server.requests] == [
            None,
            "status(500)",
            None,
            "rate_limited(retry-after: 2)",
            None,
        ]


async def test_a_rule_picks_its_requests() -> None:
    """By path, by what they ask, after some, for so many."""
    rule = On(faults.html(), path="/models", skip=1, times=1)
    streams = On(faults.empty(), when=lambda request: request.streamed)
    async with FaultServer(rule, streams) as server:
        async with httpx2.AsyncClient() as client:
            kinds = [
                (await client.get(server.base_url + "/models")).headers["content-type"]
                for _ in range(3)
            ]
        assert kinds == ["application/json", "text/html", "application/json"]
        assert (await post(server)).json()["choices"]
        assert (await post(server, True)).content == b""


async def test_a_seeded_coin_always_falls_the_same() -> None:
    """About the share that was asked for, and the same requests each time."""
    seen = []
    for _ in range(2):
        async with FaultServer(Sometimes(0.3, [faults.status(503)], seed=5)) as server:
            seen.append([(await post(server)).status_code for _ in range(40)])
    assert seen[0] == seen[1]
    assert 5 <= seen[0].count(503) <= 20


@pytest.mark.parametrize(
    ("fault", "text", "end"),
    [
        (faults.silence(), None, "open"),
        (faults.reset(), None, "reset"),
        (faults.hang_up(), None, "closed"),
        (faults.cut(2), "one two", "reset"),
        (faults.stall(2), "one two", "open"),
        (faults.keep_alives(1), "one", "open"),
        (faults.ends_early(3), "one two three", "open"),
    ],
    ids=repr,
)
async def test_how_a_stream_breaks(fault: Any, text: str | None, end: str) -> None:
    """So many tokens, then what the name says."""
    async with FaultServer(fault, answer=TEXT) as server:
        got, how = await received(server)
        assert how == end
        if text is None:
            assert got == b""
        else:
            assert words(b"\n".join(got.split(b"\r\n"))) == text
        assert b"[DONE]" not in got
        assert got.endswith(b"0\r\n\r\n") == (fault.name == "ends_early(3)")
        if fault.name == "keep_alives(1)":
            assert b": keep-alive" in got


@pytest.mark.parametrize("fault", [faults.cut(2), faults.stall(1), faults.ends_early(1)], ids=repr)
async def test_an_answer_that_is_not_streamed_breaks_in_its_middle(fault: Any) -> None:
    """Half of the JSON is there."""
    async with FaultServer(fault, answer=TEXT) as server:
        got, _ = await received(server, stream=False)
        assert b'{"id"' in got
        assert b'"usage"' not in got


async def test_what_comes_instead_of_an_answer() -> None:
    """Each with the status, the type and the body that servers send."""
    table = [
        (faults.html(), 200, "text/html", b"<!doctype"),
        (faults.empty(), 200, "application/json", b""),
        (faults.invalid_json(), 200, "application/json", b"{"),
        (faults.wrong_shape(), 200, "application/json", b"["),
        (faults.error_in_200(), 200, "application/json", b'{"error"'),
        (faults.unauthorized(), 401, "application/json", b'{"error"'),
        (faults.insufficient_quota(), 429, "application/json", b'{"error"'),
    ]
    async with FaultServer(*(row[0] for row in table)) as server:
        for _, status, kind, begin in table:
            got = await post(server)
            assert (got.status_code, got.headers["content-type"]) == (status, kind)
            assert got.content.startswith(begin)
            assert bool(got.content) == bool(begin)


async def test_streams_that_are_odd() -> None:
    """A broken event, an error event, no [DONE], JSON for a stream, another content type."""
    script = [
        faults.malformed_event(2),
        faults.error_event(2),
        faults.no_done(),
        faults.whole_answer(),
        faults.wrong_content_type(),
        faults.slow_headers(0.01),
        faults.slow_tokens(0.001),
        faults.delayed(0.01),
    ]
    async with FaultServer(*script, answer=TEXT) as server:
        got = [await post(server, True) for _ in script]
    assert b'"delta": \n\n' in got[0].content
    assert got[0].content.endswith(b"[DONE]\n\n")
    assert words(got[1].content) == "one two"
    assert b'"error"' in got[1].content
    assert words(got[2].content) == TEXT
    assert b"[DONE]" not in got[2].content
    assert got[3].json()["choices"][0]["message"]["content"] == TEXT
    assert got[4].headers["content-type"] == "text/plain"
    assert [words(g.content) for g in got[4:]] == [TEXT] * 4


@pytest.mark.parametrize(
    ("how", "change"),
    [
        ("generated_only", lambda was, now: len(now["tokens"]) == 1),
        ("shifted", lambda was, now: now["token_logprobs"][0] == was["token_logprobs"][1]),
        ("positive", lambda was, now: min(now["token_logprobs"]) > 0),
        ("nulls", lambda was, now: set(now["token_logprobs"]) == {None}),
        ("fewer", lambda was, now: len(now["tokens"]) == len(was["tokens"]) - 1),
        ("uneven", lambda was, now: len(now["token_logprobs"]) > len(now["tokens"])),
        ("missing", lambda was, now: now is None),
        ("other_tokens", lambda was, now: set(now["tokens"]) == {"token_id:1"}),
    ],
)
async def test_logprobs_that_lie(how: str, change: Any) -> None:
    """Only the logprobs of the healthy answer are changed."""
    async with FaultServer(HEALTHY, faults.lies(how), answer=TEXT) as server:
        body = {"model": "m", "prompt": "one two", "echo": True, "logprobs": 1, "max_tokens": 1}
        async with httpx2.AsyncClient() as client:
            was, now = [
                (await client.post(server.base_url + "/completions", json=body)).json()
                for _ in range(2)
            ]
    before, after = was["choices"][0], now["choices"][0]
    assert before["text"] == after["text"]
    assert change(before["logprobs"], after["logprobs"])


def test_a_lie_that_is_not_known() -> None:
    """The message lists those that are."""
    with pytest.raises(ValueError, match="generated_only"):
        faults.lies("white")


async def test_a_fault_of_ones_own() -> None:
    """Any async function of an exchange; what it changes is on the wire."""

    async def shouts(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            text = await answer.body()
            await exchange.send(answer.status, text.replace(b"one", b"ONE"), answer.headers)

    async with FaultServer(shouts, answer=TEXT) as server:
        got = (await post(server)).json()
        assert got["choices"][0]["message"]["content"].startswith("ONE two")
        assert server.requests[0].fault == "shouts"


async def test_a_request_that_was_left_is_over_at_once() -> None:
    """``idle`` returns when the client has gone, and the record says that it left."""
    async with FaultServer(faults.silence()) as server:
        asking = asyncio.ensure_future(post(server))
        await server.arrived(1)
        with pytest.raises(TimeoutError, match=r"1 /v1/chat/completions \(silence\(\)\)"):
            await server.idle(0.01)
        asking.cancel()
        await server.idle(1)
        assert server.requests[0].left
        assert server.under_way == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_healthy_answer_that_was_left_is_over_as_well(stream: bool) -> None:
    """In the middle of it."""
    async with FaultServer(pace="tpot=5ms") as server:
        asking = asyncio.ensure_future(post(server, stream))
        await server.arrived(1)
        asking.cancel()
        await server.idle(1)
        assert server.requests[0].left
        assert [r.status for r in server.bill] in ([499], [])


async def test_pace_and_key_are_the_reference_servers() -> None:
    """Whatever the toy model could do before, it can do here."""
    async with FaultServer(api_key="right", pace="ttft=50ms", prefill=["prefix"]) as server:
        assert (await post(server)).status_code == 401
        loop = asyncio.get_running_loop()
        async with httpx2.AsyncClient(headers={"authorization": "Bearer right"}) as client:
            started = loop.time()
            got = await client.post(server.base_url + "/chat/completions", json=BODY)
            assert got.status_code == 200
            assert loop.time() - started >= 0.05


async def test_play_changes_the_script_and_forget_the_records() -> None:
    """Numbers go on."""
    async with FaultServer() as server:
        await post(server)
        server.forget()
        assert (server.requests, server.bill) == ([], [])
        server.play(faults.status(418))
        assert (await post(server)).status_code == 418
        assert [r.number for r in server.requests] == [2]


def test_in_a_thread_of_its_own() -> None:
    """A program without an event loop uses ``with``; nothing is left of it afterwards."""
    before = threading.active_count()
    with FaultServer(faults.status(500), answer=TEXT) as server, httpx2.Client() as client:
        url = server.base_url + "/chat/completions"
        assert client.post(url, json=BODY).status_code == 500
        assert client.post(url, json=BODY).json()["choices"][0]["message"]["content"] == TEXT
        server.wait_until_idle(1)
        port = int(server.root.rsplit(":", 1)[1])
    assert threading.active_count() == before
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        pass


def test_it_needs_the_base_install_only() -> None:
    """No web framework, no torch, no openai."""
    code = (
        "import sys, specroute.testing\n"
        "print([m for m in ('starlette', 'uvicorn', 'torch', 'numpy', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

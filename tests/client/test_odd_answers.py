"""What OpenAI-format servers really send: each odd answer is read for what it means."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

import specroute
from specroute.http.mend import Mender, looks_odd
from tests.client.test_fallback import ask, two
from tests.client.world import MESSAGES, configured
from tests.support.loopback import DONE, Exchange, event

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def part(delta: Any, finish: Any = None, **choice: Any) -> bytes:
    return event(
        {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]}
    )


def bare(**fields: Any) -> bytes:
    return event({**HEAD, **fields})


HELLO = [part({"role": "assistant"}), part({"content": "Hel"}), part({"content": "lo"})]
STOP = {"index": 0, "finish_reason": "stop"}
END = [part({}, "stop"), DONE]

STREAMS: dict[str, list[bytes]] = {
    "keep-alives": [b": ping\n\n", *HELLO, b": ping\n\n", *END],
    "empty data": [b"data: \n\n", *HELLO, b"data:\n\n", *END],
    "no [DONE]": [*HELLO, END[0]],
    "no finish_reason": [*HELLO, DONE],
    "crlf": [b"".join([*HELLO, *END]).replace(b"\n", b"\r\n")],
    "choices null": [bare(choices=None), *HELLO, bare(choices=None), *END],
    "choices empty first": [bare(choices=[], prompt_filter_results=[]), *HELLO, *END],
    "choices empty last": [*HELLO, END[0], bare(choices=[]), DONE],
    "no choices": [bare(), *HELLO, *END],
    "delta null": [part(None), *HELLO, part(None, "stop"), DONE],
    "no delta": [bare(choices=[{"index": 0}]), *HELLO, bare(choices=[STOP]), DONE],
    "a message for a delta": [
        *HELLO,
        bare(choices=[{**STOP, "message": {"role": "assistant"}}]),
        DONE,
    ],
    "empty contents": [*HELLO, part({"content": ""}), part({"content": None}), *END],
    "finish_reason ''": [
        part({"role": "assistant"}, ""),
        part({"content": "Hel"}, ""),
        part({"content": "lo"}, ""),
        *END,
    ],
    "finish_reason 'null'": [
        part({"content": "Hel"}, "null"),
        part({"content": "lo"}, "null"),
        *END,
    ],
    "finish_reason of its own": [*HELLO, part({}, "eos_token"), DONE],
    "finish_reason with text": [HELLO[1], part({"content": "lo"}, "length")],
    "usage in every chunk": [
        event({**json.loads(p[6:]), "usage": {"prompt_tokens": 3, "completion_tokens": n}})
        for n, p in enumerate([*HELLO, END[0]])
    ],
    "logprobs null": [part({"content": "Hel"}, logprobs=None), HELLO[2], *END],
    "logprobs of another shape": [
        part({"content": "Hel"}, logprobs={"tokens": ["Hel"], "token_logprobs": [-0.1]}),
        part({"content": "lo"}, logprobs=[-0.1]),
        *END,
    ],
    "no index": [event({"choices": [{"delta": {"content": "Hello"}}]}), DONE],
    "after [DONE]": [*HELLO, *END, b"data: {broken\n\n"],
}


@pytest.mark.parametrize("name", STREAMS)
async def test_an_odd_stream(name: str) -> None:
    """Its text, whole, by a loop that trusts openai's types; complete in the report."""

    async def odd(exchange: Exchange) -> None:
        await exchange.stream(STREAMS[name])

    async with configured(odd, max_retries=0) as (_, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        text = ""
        async for c in stream:
            for choice in c.choices or ():
                text += choice.delta.content or ""
    told = specroute.report(stream)
    assert text == "Hello"
    assert (told.complete, told.attempts[-1].outcome) == (True, "ok")
    assert told.completion_tokens in (1, 2, 3)


async def test_nulls_are_made_empty() -> None:
    """``for choice in chunk.choices`` and ``choice.delta.content`` must not break."""

    async def odd(exchange: Exchange) -> None:
        await exchange.stream([bare(choices=None), part(None), *HELLO, *END])

    async with configured(odd) as (_, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        got = [c async for c in stream]
    assert all(c.choices is not None for c in got)
    assert all(choice.delta is not None for c in got for choice in c.choices)


@pytest.mark.parametrize(
    "pieces",
    [
        [*HELLO, part({}, "")],
        [*HELLO, part({}, "null")],
        HELLO,
        [],
    ],
)
async def test_an_end_that_is_none_is_truncated(pieces: list[bytes]) -> None:
    """Neither a finish_reason that says nothing nor silence makes an answer whole."""

    async def odd(exchange: Exchange) -> None:
        await exchange.stream(pieces)

    async with configured(odd, max_retries=0) as (_, client):
        with pytest.raises(specroute.StreamTruncated):
            stream = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=True
            )
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"message": "overloaded"}\n\n',
        b"event: error\ndata: overloaded\n\n",
        b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n',
        b'data: {"error": "overloaded", "choices": []}\n\n',
    ],
)
async def test_an_error_in_a_stream(error: bytes) -> None:
    """However it is written; what came before it is handed on."""

    async def odd(exchange: Exchange) -> None:
        await exchange.stream([*HELLO, error])

    async with configured(odd, max_retries=0) as (_, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="overloaded"):
            async for c in stream:
                text += c.choices[0].delta.content or ""
    assert text == "Hello"


async def test_usage_that_is_missing_is_counted_here() -> None:
    """And marked; a whole answer by its length."""

    async def streamed(exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await exchange.stream([*HELLO, *END])
        else:
            message = {"role": "assistant", "content": "Hello there, you"}
            await exchange.json_answer(
                {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            )

    async with configured(streamed) as (_, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        async for _ in stream:
            pass
        told = specroute.report(stream)
        assert (told.completion_tokens, told.prompt_tokens) == (2, None)
        assert told.attempts[0].estimated
        whole = await client.chat.completions.create(model="smart", messages=MESSAGES)
        told = specroute.report(whole)
        assert (told.completion_tokens, told.attempts[0].estimated) == (4, True)


async def test_tool_calls_without_an_index_get_theirs() -> None:
    """openai's own accumulation puts them together."""

    def calls(*deltas: dict[str, Any]) -> bytes:
        return part({"tool_calls": list(deltas)})

    pieces = [
        part({"role": "assistant", "content": None}),
        calls({"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
        calls({"function": {"arguments": '{"x":'}}),
        calls({"function": {"arguments": "1}"}}),
        calls({"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}),
        part({}, "tool_calls"),
        DONE,
    ]

    async def odd(exchange: Exchange) -> None:
        await exchange.stream(pieces)

    async with (
        configured(odd) as (_, client),
        client.chat.completions.stream(model="smart", messages=MESSAGES) as stream,
    ):
        answer = await stream.get_final_completion()
    found = [(c.function.name, c.function.arguments) for c in answer.choices[0].message.tool_calls]
    assert found == [("f", '{"x":1}'), ("g", "{}")]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[{"id": "a"}], [{}], [{"id": "b"}], [{}]], [[0], [0], [1], [1]]),
        ([[{"id": "a"}, {"id": "b"}]], [[0, 1]]),
        ([[{"index": 1, "id": "a"}], [{}]], [[1], [1]]),
        ([[{}], [{"function": {"name": "f"}}]], [[0], [1]]),
        ([[{"index": True}]], [[0]]),
    ],
)
def test_tool_calls_are_numbered(chunks: list[Any], expected: list[list[int]]) -> None:
    """A name or an id begins a call; anything else goes on with the last."""
    mender = Mender()
    found = []
    for calls in chunks:
        data = {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}
        assert looks_odd(json.dumps(data).encode())
        mender.mend(data)
        found.append([c["index"] for c in calls])
    assert found == expected


def test_what_is_well_is_not_touched() -> None:
    """Nothing to mend, nothing said to be mended."""
    for delta in (
        {"content": "a"},
        {"tool_calls": [{"index": 0, "id": "a"}]},
        {"tool_calls": None},
    ):
        assert not Mender().mend({"choices": [{"index": 0, "delta": delta}]})
    assert not looks_odd(b'{"choices":[{"delta":{"content":"null"}}],"usage":null}')


NOTHING: dict[str, Any] = {
    "no choice": [],
    "null for a choice": [None],
    "null for a message": [{"index": 0, "message": None, "finish_reason": "stop"}],
    "neither message nor text": [{"index": 0, "finish_reason": "stop"}],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", NOTHING)
async def test_a_whole_answer_that_holds_nothing_is_none(name: str, stream: bool) -> None:
    """Though its status is good; the next target is asked."""
    empty = {**HEAD, "object": "chat.completion", "choices": NOTHING[name]}

    async def says_nothing(exchange: Exchange) -> None:
        await exchange.json_answer(empty)

    async with two(says_nothing) as (_, _, client):
        text, report = await ask(client, stream)
    assert text == "Hello"
    assert [a.outcome for a in report.attempts] == ["BadAnswer", "ok"]


async def test_an_answer_with_an_error_field_beside_it_is_an_answer() -> None:
    """Whole or as the stream that it should have been."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, **STOP}
    both = {**HEAD, "object": "chat.completion", "choices": [choice], "error": {"code": 0}}

    async def answers(exchange: Exchange) -> None:
        await exchange.json_answer(both)

    async with two(answers) as (_, hub, client):
        assert [(await ask(client, stream))[0] for stream in (False, True)] == ["Hi", "Hi"]
    assert hub.seen == []


async def test_a_tool_call_beside_text_gets_its_index_however_it_is_spaced() -> None:
    """As Python's json writes it, or compactly."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    odd = {**HEAD, "choices": [{"index": 0, "delta": {"content": "a", "tool_calls": [call]}}]}
    for separators in ((", ", ": "), (",", ":")):
        line = b"data: " + json.dumps(odd, separators=separators).encode() + b"\n\n"

        async def answers(exchange: Exchange, line: bytes = line) -> None:
            await exchange.stream([line, part({}, "tool_calls"), DONE])

        async with two(answers) as (_, _, client):
            stream = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=True
            )
            first, *_ = [chunk async for chunk in stream]
        assert [c.index for c in first.choices[0].delta.tool_calls] == [0]

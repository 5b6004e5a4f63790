"""/v1/chat/completions through the openai client, prefill in every dialect, and the prompt's text."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

SCRIPT = {
    "name": "teller",
    "vocabulary": ["one", " two", " three", "你", "好", "{", "}"],
    "answers": [
        {"when": "count", "text": "one two three"},
        {"when": "greet", "text": "你好", "p": 0.5},
        {"when": "weather", "text": '{"city": "Oslo"}', "tool": "get_weather"},
    ],
    "default": {"one": 0.5, " two": 0.25, "<|end|>": 0.25},
}


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(SCRIPT) as server:
        yield server


@pytest.fixture
async def client(server: ReferenceServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any") as client:
        yield client


@pytest.fixture
def api(server: ReferenceServer) -> Iterator[Http]:
    with Http(server) as api:
        yield api


async def test_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    """Text, finish and counts; the end token is counted."""
    answer = await client.chat.completions.create(model="teller", messages=messages("count"))
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_a_stream(client: openai.AsyncOpenAI) -> None:
    """The role first, then a chunk a token, the finish on the last, then the usage."""
    stream = await client.chat.completions.create(
        model="teller",
        messages=messages("count"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    deltas = [c.choices[0].delta.content for c in chunks if c.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert deltas == ["", "one", " two", " three", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert len({c.id for c in chunks}) == 1


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    """content[] has each token, its bytes, its logprob and its alternatives."""
    answer = await client.chat.completions.create(
        model="teller", messages=messages("greet"), logprobs=True, top_logprobs=2, temperature=0
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert [c.token for c in content] == ["你", "好", "<|end|>"]
    assert content[0].bytes == list("你".encode())
    assert content[0].logprob == pytest.approx(math.log(0.5))
    assert [(t.token, round(math.exp(t.logprob), 9)) for t in content[0].top_logprobs] == [
        ("你", 0.5),
        ("one", 0.25),
    ]
    assert content[-1].logprob == 0


async def test_several_choices(client: openai.AsyncOpenAI) -> None:
    """n answers, each with its own index."""
    answer = await client.chat.completions.create(model="teller", messages=messages("count"), n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert {c.message.content for c in answer.choices} == {"one two three"}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_token_limits(api: Http, name: str) -> None:
    """The old name and the new."""
    body = api.chat(messages=messages("count"), **{name: 2})
    assert body["choices"][0]["message"]["content"] == "one two"
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_prediction_changes_the_bill_and_not_the_answer(api: Http) -> None:
    """Predicted tokens that don't appear count as completion tokens, as the vendors bill them."""
    plain = api.chat(messages=messages("count"))
    predicted = api.chat(
        messages=messages("count"), prediction={"type": "content", "content": "one two two two"}
    )
    assert predicted["choices"] == plain["choices"]
    usage = predicted["usage"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    rejected = details["rejected_prediction_tokens"]
    assert rejected > 0
    assert usage["completion_tokens"] == plain["usage"]["completion_tokens"] + rejected


def test_a_prediction_does_not_go_with_everything(api: Http) -> None:
    """As in OpenAI's guide: 400 for logprobs, n > 1, tools and positive penalties; parts are ok."""
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    prediction = {"type": "content", "content": parts}
    api.chat(messages=messages("count"), prediction=prediction)
    for more in (
        {"logprobs": True},
        {"n": 2},
        {"presence_penalty": 0.5},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ):
        refused = api.post(
            "/v1/chat/completions", messages=messages("count"), prediction=prediction, **more
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(more))
    for wrong in ("one", {"type": "text", "content": "one"}, {"type": "content", "content": 1}):
        refused = api.post("/v1/chat/completions", messages=messages("count"), prediction=wrong)
        assert refused.status_code == 400


def test_a_scripted_tool_call(api: Http) -> None:
    """With tools in the request, the answer's text is the call's arguments, streamed or not."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    choice = api.chat(messages=messages("weather"), tools=tools)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    function = choice["message"]["tool_calls"][0]["function"]
    assert function == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    chunks = api.stream("/v1/chat/completions", messages=messages("weather"), tools=tools)
    calls = [c["choices"][0]["delta"]["tool_calls"][0]["function"] for c in chunks]
    assert calls[0]["name"] == "get_weather"
    assert "".join(c["arguments"] for c in calls) == '{"city": "Oslo"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_chat_that_calls_tools_is_a_prompt_like_any(client: openai.AsyncOpenAI) -> None:
    """Null content and tool messages are taken."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "count"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    answer = await client.chat.completions.create(model="teller", messages=turns)
    assert answer.choices[0].message.content == "one two three"


PREFILLED = [*messages("count"), {"role": "assistant", "content": "one"}]
DIALECTS: dict[str, dict[str, Any]] = {
    "continue_final_message": {
        "messages": PREFILLED,
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "trailing_assistant": {"messages": PREFILLED},
    "prefix": {"messages": [PREFILLED[0], {**PREFILLED[1], "prefix": True}]},
    "partial": {"messages": [PREFILLED[0], {**PREFILLED[1], "partial": True}]},
    "body_prefix": {"messages": messages("count"), "prefix": "one"},
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_prefill(dialect: str) -> None:
    """The answer goes on from the given start, which isn't repeated."""
    with ReferenceServer(SCRIPT, prefill=[dialect]) as server, Http(server) as api:
        body = api.chat(**DIALECTS[dialect])
    assert body["choices"][0]["message"]["content"] == " two three"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_prefill_repeated(dialect: str) -> None:
    """On servers that say the start again, both forms of answer begin with it."""
    with (
        ReferenceServer(SCRIPT, prefill=[dialect], prefill_repeats=True) as server,
        Http(server) as api,
    ):
        body = api.chat(**DIALECTS[dialect])
        chunks = api.stream("/v1/chat/completions", **DIALECTS[dialect])
    assert body["choices"][0]["message"]["content"] == "one two three"
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == "one two three"


def test_prefill_trimmed() -> None:
    """On servers that trim, the space that was sent at the end is generated again."""
    turns = [*messages("count"), {"role": "assistant", "content": "one "}]
    with (
        ReferenceServer(SCRIPT, prefill=["trailing_assistant"], prefill_trims=True) as server,
        Http(server) as api,
    ):
        body = api.chat(messages=turns)
    assert body["choices"][0]["message"]["content"] == " two three"


def test_other_dialects_than_the_servers_own(api: Http) -> None:
    """A trailing assistant is an ordinary turn; unknown flags on it mean nothing."""
    for dialect in ("trailing_assistant", "prefix", "partial", "body_prefix"):
        body = api.chat(**DIALECTS[dialect])
        assert body["choices"][0]["message"]["content"] == "one two three"


def test_continuing_and_opening_at_once_is_refused(api: Http) -> None:
    """As in vLLM."""
    answer = api.post(
        "/v1/chat/completions",
        messages=PREFILLED,
        continue_final_message=True,
        add_generation_prompt=True,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "add_generation_prompt"


def test_the_prompt_as_text_and_as_ids(api: Http) -> None:
    """/apply-template, /tokenize, /detokenize and the completion of the same ids agree."""
    text = api.post("/apply-template", messages=messages("count")).json()["prompt"]
    assert text == "<|user|>count<|end|><|assistant|>"
    tokens = api.post("/tokenize", messages=messages("count")).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 8192
    assert api.post("/tokenize", prompt=text).json() == tokens
    assert api.post("/detokenize", tokens=tokens["tokens"]).json() == {"prompt": text}
    body = api.complete(prompt=tokens["tokens"], max_tokens=9)
    assert body["choices"][0]["text"] == "one two three"


def test_a_prefilled_prompt_as_ids(api: Http) -> None:
    """/tokenize continues a final message as the chat does."""
    tokens = api.post("/tokenize", **DIALECTS["continue_final_message"]).json()["tokens"]
    body = api.complete(prompt=tokens, max_tokens=9)
    assert body["choices"][0]["text"] == " two three"


async def test_models_and_embeddings(client: openai.AsyncOpenAI) -> None:
    """Enough for what only passes through."""
    assert [m.id async for m in client.models.list()] == ["teller"]
    assert (await client.models.retrieve("teller")).id == "teller"
    first = await client.embeddings.create(model="teller", input=["count", "greet"])
    again = await client.embeddings.create(model="teller", input="count", encoding_format="float")
    assert len(first.data) == 2
    assert first.data[0].embedding == pytest.approx(again.data[0].embedding)
    assert first.data[0].embedding != first.data[1].embedding

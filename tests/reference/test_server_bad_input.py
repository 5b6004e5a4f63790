"""Bad input: a 4xx in OpenAI's shape that names the value, whatever is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

SPEC: dict[str, Any] = {"vocabulary": ["a", "b", "é"], "max_len": 48}


@pytest.fixture(scope="module")
def api() -> Iterator[Http]:
    with ReferenceServer(SPEC) as server, Http(server) as api:
        yield api


COMPLETION: dict[str, Any] = {"prompt": "a"}
CHAT: dict[str, Any] = {"messages": messages("a")}


@pytest.mark.parametrize(
    ("base", "bad", "message"),
    [
        (COMPLETION, {"prompt": None}, "prompt: expected a string, a list of token ids"),
        (COMPLETION, {"prompt": []}, "prompt: expected a string, a list of token ids"),
        (COMPLETION, {"prompt": ""}, "prompt: expected at least one token, got ''"),
        (COMPLETION, {"prompt": [[]]}, "prompt: expected at least one token, got []"),
        (COMPLETION, {"prompt": [0, 10**6]}, "prompt: expected token ids from 0 to"),
        (COMPLETION, {"prompt": [-1]}, "prompt: expected token ids from 0 to"),
        (COMPLETION, {"prompt": [True]}, "prompt[0]: expected token ids, got True"),
        (COMPLETION, {"max_tokens": 0}, "max_tokens: expected at least 1 (0 only together with echo)"),
        (COMPLETION, {"max_tokens": 1.5}, "max_tokens: expected an integer ≥ 0, got 1.5"),
        (COMPLETION, {"max_tokens": -1}, "max_tokens: expected an integer ≥ 0, got -1"),
        (COMPLETION, {"logprobs": 21}, "logprobs: expected at most 20, got 21"),
        (COMPLETION, {"echo": "yes"}, "echo: expected true or false, got 'yes'"),
        (COMPLETION, {"n": 129}, "n: expected an integer from 1 to 128, got 129"),
        (COMPLETION, {"temperature": 3}, "temperature: expected a number from 0 to 2, got 3"),
        (COMPLETION, {"temperature": True}, "temperature: expected a number from 0 to 2, got True"),
        (COMPLETION, {"top_p": 0}, "top_p: expected more than 0, got 0"),
        (COMPLETION, {"logit_bias": {"x": 1}}, "logit_bias: expected token ids as keys, got 'x'"),
        (COMPLETION, {"logit_bias": {"0": 101}}, "logit_bias.0: expected a number from -100 to 100"),
        (COMPLETION, {"logit_bias": {"999999": 1}}, "logit_bias: expected token ids from 0 to"),
        (COMPLETION, {"stop": ["a", ""]}, "stop: expected a non-empty string, or up to 16"),
        (COMPLETION, {"suffix": "x"}, "suffix: expected no suffix"),
        (COMPLETION, {"best_of": 2}, "best_of: expected n (1), or nothing, got 2"),
        (COMPLETION, {"stream_options": {}}, "stream_options: expected stream: true beside it"),
        (CHAT, {"messages": []}, "messages: expected a non-empty list of messages, got []"),
        (CHAT, {"messages": ["a"]}, "messages[0]: expected an object with role and content"),
        (CHAT, {"messages": [{"role": "me", "content": ""}]}, "messages[0].role: expected one of"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content: expected a string"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs: expected logprobs: true beside it, got 2"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected at most 20, got 21"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens: expected an integer ≥ 1, got 0"),
        (CHAT, {"model": None}, "model: expected the model's name, got None"),
        (CHAT, {"model": "gpt-9"}, "The model `gpt-9` does not exist"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    api: Http, base: dict[str, Any], bad: dict[str, Any], message: str
) -> None:
    """The parameter, what was expected, and what came."""
    path = "/v1/chat/completions" if "messages" in base else "/v1/completions"
    answer = api.post(path, **{**base, **bad})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": "\\ud800", "model": "script"}',
        b"[" * 100_000, b'{"seed": ' + b"9" * 10_000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_isnt_a_json_object(api: Http, body: bytes) -> None:
    """400, and the next request on the connection is answered."""
    answer = api._client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert api.get("/health").status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
SENSIBLE = {
    "prompt": st.sampled_from(["a", [0, 1], ["a", "b"], [[0], [1]]]),
    "messages": st.just(messages("é")),
    "max_tokens": st.integers(0, 50),
    "max_completion_tokens": st.integers(1, 50),
    "n": st.integers(1, 4),
    "echo": st.booleans(),
    "logprobs": st.integers(0, 25) | st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 3),
    "stop": st.sampled_from(["a", ["b", "é"], "\ufffd"]),
    "seed": st.integers(),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "1", "3"]), st.floats(-100, 100)),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "ignore_eos": st.booleans(),
    "stop_token_ids": st.just([1]),
    "return_tokens_as_token_ids": st.booleans(),
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "tools": st.just([{"type": "function"}]),
    "tokens": st.lists(st.integers(-1, 300), max_size=3),
    "input": st.just(["a"]),
    "encoding_format": st.sampled_from(["float", "base64"]),
}
PATHS = [
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template",
    "/v1/embeddings", "/generate",
]  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(PATHS),
    body=st.fixed_dictionaries(
        {}, optional={name: value | JSON for name, value in SENSIBLE.items()}
    ),
)
def test_nothing_that_is_sent_breaks_it(api: Http, path: str, body: dict[str, Any]) -> None:
    """Any JSON in any parameter: an answer or a 4xx with a message, never a 500."""
    content = json.dumps({"model": api.server.model, "max_tokens": 4, **body})
    answer = api._client.post(path, content=content.encode())
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]

"""What can be switched off, ignored or broken, so that one server plays many."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest

from specroute.reference.options import CAPABILITIES, ENDPOINTS, PARAMETERS, Options
from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

SCRIPT: dict[str, Any] = {"vocabulary": ["a", "b"], "default": {"a": 0.75, "b": 0.25}}
CHAT = {"messages": messages("a"), "max_tokens": 2}
ASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": ("completions", {"prompt": "a", "echo": True, "logprobs": 1}),
    "logprobs": ("chat", {**CHAT, "logprobs": True}),
    "prefill": ("chat", {**CHAT, "continue_final_message": True, "add_generation_prompt": False}),
    "streaming": ("chat", {**CHAT, "stream": True}),
    "stream_usage": ("chat", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    "logit_bias": ("chat", {**CHAT, "logit_bias": {"0": 1}}),
    "penalties": ("chat", {**CHAT, "presence_penalty": 1}),
    "seed": ("chat", {**CHAT, "seed": 1}),
    "stop": ("chat", {**CHAT, "stop": "b"}),
    "n": ("chat", {**CHAT, "n": 2}),
    "top_k": ("chat", {**CHAT, "top_k": 1}),
    "prediction": ("chat", {**CHAT, "prediction": {"type": "content", "content": "a"}}),
    "tools": ("chat", {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    "response_format": ("chat", {**CHAT, "response_format": {"type": "json_object"}}),
    "token_id_names": ("chat", {**CHAT, "return_tokens_as_token_ids": True}),
    "token_ids": ("chat", {**CHAT, "return_token_ids": True}),
    "id_prompts": ("completions", {"prompt": [0, 1]}),
    "list_prompts": ("completions", {"prompt": ["a", "b"]}),
    "tokenize": ("tokenize", {"prompt": "a"}),
    "detokenize": ("detokenize", {"tokens": [0]}),
    "apply_template": ("apply_template", CHAT),
    "generate": ("generate", {"input_ids": [0, 1]}),
    "prompt_logprobs": ("completions", {"prompt": "a", "prompt_logprobs": 1}),
    "embeddings": ("embeddings", {"input": "a"}),
    "completions": ("completions", {"prompt": "a"}),
    "chat": ("chat", CHAT),
}


@pytest.mark.parametrize("capability", ASKING)
def test_switched_off_it_is_refused(capability: str) -> None:
    """An endpoint answers 404, a parameter 400; both in OpenAI's shape. The rest still works."""
    endpoint, asked = ASKING[capability]
    with ReferenceServer(SCRIPT, disable=[capability]) as server, Http(server) as api:
        refused = api.post(ENDPOINTS[endpoint], **asked)
        health = api.get("/health")
    assert refused.status_code == (404 if capability in ENDPOINTS else 400)
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert health.status_code == 200


@pytest.mark.parametrize("capability", PARAMETERS)
def test_ignored_it_has_no_effect(capability: str) -> None:
    """The answer is a 200, as if the parameter hadn't been sent."""
    endpoint, asked = ASKING[capability]
    with ReferenceServer(SCRIPT, ignore=[capability]) as server, Http(server) as api:
        answer = api.post(ENDPOINTS[endpoint], temperature=0, **asked)
    assert answer.status_code == 200
    if capability == "streaming":
        assert answer.json()["object"] == "chat.completion"
    if capability == "echo":
        assert answer.json()["choices"][0]["logprobs"]["token_logprobs"][0] is not None
    if capability == "logprobs":
        assert answer.json()["choices"][0]["logprobs"] is None


def test_every_capability_is_tested() -> None:
    """The table above has all that can be switched off, but for two without a request."""
    assert set(CAPABILITIES) - set(ASKING) == {"models", "cached_tokens"}


def test_usage_may_say_nothing_about_the_cache() -> None:
    """As servers do that weren't told to report it."""
    with (
        ReferenceServer(SCRIPT, disable=["cached_tokens", "models"]) as server,
        Http(server) as api,
    ):
        usage = api.complete(prompt="a")["usage"]
        assert api.get("/v1/models").status_code == 404
    assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_a_parameter_at_its_neutral_value_is_not_asking() -> None:
    """n = 1 or echo = false are allowed where n or echo is not."""
    with ReferenceServer(SCRIPT, disable=["n", "echo", "logprobs"]) as server, Http(server) as api:
        api.complete(prompt="a", n=1, echo=False, logprobs=None)
        api.chat(**CHAT, logprobs=False)
        assert api.post("/v1/completions", prompt="a", logprobs=0).status_code == 400


async def test_a_key_may_be_required() -> None:
    """Without it, 401, as an openai.AuthenticationError; /health stays open."""
    with ReferenceServer(SCRIPT, api_key="s3cret") as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
            assert caught.value.code == "invalid_api_key"
            assert "s3cret" not in str(caught.value)
            assert [m.id async for m in client.with_options(api_key="s3cret").models.list()]
        with Http(server) as api:
            assert api.get("/health").status_code == 200


def test_several_names_and_none_other() -> None:
    """Every name answers; another is a 404 that lists them."""
    with ReferenceServer(SCRIPT, names=["big", "small"]) as server, Http(server) as api:
        assert [m["id"] for m in api.get("/v1/models").json()["data"]] == ["big", "small"]
        assert api.chat(**{**CHAT, "model": "small"})["model"] == "small"
        answer = api.post("/v1/chat/completions", **{**CHAT, "model": "huge"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert "big, small" in answer.json()["error"]["message"]
        assert api.get("/v1/models/huge").status_code == 404


def test_echo_shifted_by_one() -> None:
    """Quirk: entry i is scored with the distribution after token i."""
    chain = {
        "vocabulary": ["a", "b"],
        "rows": [
            {"after": ["a"], "next": {"a": 0.1, "b": 0.9}},
            {"after": ["b"], "next": {"a": 0.6, "b": 0.4}},
        ],
    }
    with ReferenceServer(chain, quirks=["echo_shifted"]) as server, Http(server) as api:
        body = api.complete(prompt="aba", echo=True, logprobs=1, max_tokens=0)
    scores = body["choices"][0]["logprobs"]["token_logprobs"]
    assert scores == [None, pytest.approx(math.log(0.6)), pytest.approx(math.log(0.6))]


@pytest.mark.parametrize(
    ("quirk", "told"),
    [
        ("first_prompt_only", [(0, "ba")]),
        ("answers_unordered", [(1, "aa"), (0, "ba")]),
        ("answers_misnumbered", [(0, "aa"), (1, "ba")]),
    ],
)
def test_lists_of_prompts_answered_strangely(quirk: str, told: list[tuple[int, str]]) -> None:
    """Quirks: part of a list, and a list in another order."""
    with ReferenceServer(SCRIPT, quirks=[quirk]) as server, Http(server) as api:
        body = api.complete(prompt=["b", "a"], echo=True, max_tokens=1, temperature=0)
    assert [(c["index"], c["text"]) for c in body["choices"]] == told


def test_logprobs_after_temperature() -> None:
    """Quirk: generated tokens' logprobs are those of the distribution they were drawn from."""
    with ReferenceServer(SCRIPT, quirks=["scaled_logprobs"]) as server, Http(server) as api:
        body = api.complete(prompt="a", logprobs=2, max_tokens=1, temperature=0.5)
    top = body["choices"][0]["logprobs"]["top_logprobs"][0]
    assert top == {"a": pytest.approx(math.log(0.9)), "b": pytest.approx(math.log(0.1))}


@pytest.mark.parametrize(
    "options",
    [{"disable": {"eco"}}, {"ignore": {"id_prompts"}}, {"prefill": {"x"}}, {"quirks": {"x"}}],
)
def test_unknown_names_are_errors(options: dict[str, Any]) -> None:
    """They show the value and the known ones."""
    with pytest.raises(ValueError, match=r"unknown '\w+'; expected \w+, "):
        Options(**{key: frozenset(value) for key, value in options.items()})

"""Scoring as other servers have it: ``prompt_logprobs`` on both endpoints, and ``/generate``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

CHAIN = {
    "vocabulary": ["a", "b", "c", "</s>"],
    "eos": "</s>",
    "default": {"a": 1.0},
    "rows": [
        {"after": ["a"], "next": {"b": 0.75, "a": 0.25}},
        {"after": ["b"], "next": {"c": 0.5, "a": 0.3, "</s>": 0.2}},
        {"after": ["c"], "next": {"</s>": 0.9, "a": 0.1}},
    ],
}
A, B, C, EOS = range(4)


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(CHAIN) as server:
        yield server


@pytest.fixture
def api(server: ReferenceServer) -> Iterator[Http]:
    with Http(server) as api:
        yield api


def one(p: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": pytest.approx(math.log(p)), "rank": rank, "decoded_token": text}


def test_prompt_logprobs_stand_in_the_choice(api: Http) -> None:
    """The first is null; the token itself comes first, then the best, then nothing."""
    body = api.complete(prompt=[A, B, A], prompt_logprobs=1, max_tokens=1, temperature=0)
    assert body["choices"][0]["text"] == "b"
    assert body["choices"][0]["prompt_logprobs"] == [
        None,
        {"1": one(0.75, 1, "b")},
        {"0": one(0.3, 2, "a"), "2": one(0.5, 1, "c")},
    ]
    assert [*body["choices"][0]["prompt_logprobs"][2]] == ["0", "2"]


def test_of_a_list_each_prompt_has_its_own(api: Http) -> None:
    """All n choices of a prompt show the same."""
    body = api.complete(prompt=[[A, B], [A, A, A]], n=2, prompt_logprobs=1, max_tokens=1)
    sizes = [len(choice["prompt_logprobs"]) for choice in body["choices"]]
    assert sizes == [2, 2, 3, 3]


def test_on_chat_they_stand_at_the_top(api: Http) -> None:
    """With the prompt's ids."""
    body = api.chat(messages=messages("ab"), prompt_logprobs=2, max_tokens=1)
    ids = body["prompt_token_ids"]
    assert len(body["prompt_logprobs"]) == len(ids) == body["usage"]["prompt_tokens"]
    assert all(str(i) in item for i, item in zip(ids[1:], body["prompt_logprobs"][1:], strict=True))


@pytest.mark.parametrize("asked", [{"stream": True}, {"prompt_logprobs": 21}])
def test_prompt_logprobs_have_limits(api: Http, asked: dict[str, Any]) -> None:
    """No stream, no more than the server's maximum."""
    answer = api.post("/v1/completions", **{"prompt": "a", "prompt_logprobs": 1, **asked})
    assert answer.status_code == 400


def test_generate_scores_from_a_token_on(api: Http) -> None:
    """The entry at logprob_start_len is null; alternatives are the best alone."""
    answer = api.post(
        "/generate",
        input_ids=[A, B, A, A],
        sampling_params={"temperature": 0, "max_new_tokens": 2},
        return_logprob=True,
        logprob_start_len=1,
        top_logprobs_num=1,
    ).json()
    assert (answer["text"], answer["output_ids"]) == ("bc", [B, C])
    meta = answer["meta_info"]
    log = {p: pytest.approx(math.log(p)) for p in (0.25, 0.3, 0.5, 0.75)}
    assert meta["input_token_logprobs"] == [
        [None, B, None],
        [log[0.3], A, None],
        [log[0.25], A, None],
    ]
    assert meta["input_top_logprobs"] == [None, [[log[0.5], C, None]], [[log[0.75], B, None]]]
    assert meta["output_token_logprobs"] == [[log[0.75], B, None], [log[0.5], C, None]]
    assert meta["finish_reason"] == {"type": "length"}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 2)


def test_generate_alone_keeps_the_cache() -> None:
    """What lies before logprob_start_len is read from it; echo reads everything."""
    with ReferenceServer(CHAIN) as server, Http(server) as api:
        api.complete(prompt=[A, B, A, B], max_tokens=1)
        asked = {"input_ids": [A, B, A, A], "return_logprob": True, "top_logprobs_num": 1}
        native = api.post("/generate", logprob_start_len=2, **asked).json()["meta_info"]
        whole = api.post("/generate", logprob_start_len=0, **asked).json()["meta_info"]
        echoed = api.complete(prompt=[A, B, A, A], echo=True, logprobs=1, max_tokens=1)
    assert native["cached_tokens"] == 2
    assert whole["cached_tokens"] == 0
    assert echoed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_generate_answers_a_list_of_prompts_with_a_list(api: Http) -> None:
    """In the prompts' order and without numbers; each from its own place on, with its own usage."""
    both = api.post(
        "/generate",
        input_ids=[[A, B, A], [B, A]],
        sampling_params={"temperature": 0, "max_new_tokens": 1},
        return_logprob=True,
        logprob_start_len=[1, 0],
        top_logprobs_num=1,
    ).json()
    shown = [[token for _, token, _ in a["meta_info"]["input_token_logprobs"]] for a in both]
    assert shown == [[B, A], [B, A]]
    counts = [(a["meta_info"]["prompt_tokens"], a["meta_info"]["completion_tokens"]) for a in both]
    assert counts == [(3, 1), (2, 1)]


def test_generate_takes_text_and_shows_no_scores_unasked(api: Http) -> None:
    """Sampling as the completions endpoint has it."""
    answer = api.post(
        "/generate", text="a", sampling_params={"temperature": 0, "max_new_tokens": 9}
    )
    assert answer.json()["text"] == "bc"
    assert answer.json()["meta_info"].keys().isdisjoint({"input_token_logprobs"})
    assert answer.json()["meta_info"]["finish_reason"] == {"type": "stop"}


@pytest.mark.parametrize(
    "asked",
    [
        {"input_ids": [[A], [B, 99999]]},
        {"input_ids": [[A], [B]], "return_logprob": True, "logprob_start_len": [0]},
        {"input_ids": [[A], [B]], "sampling_params": {"n": 2}},
        {"input_ids": [99999]},
        {"input_ids": []},
        {},
        {"text": "a", "stream": True},
        {"text": "a", "sampling_params": 3},
        {"text": "a", "sampling_params": {"max_new_tokens": 0}},
        {"text": "a", "return_logprob": True, "logprob_start_len": 1},
        {"text": "a", "return_logprob": True, "top_logprobs_num": 21},
    ],
)
def test_generate_refuses_bad_input(api: Http, asked: dict[str, Any]) -> None:
    """A 400 in OpenAI's shape."""
    answer = api.post("/generate", **asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]

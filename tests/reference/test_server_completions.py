"""/v1/completions: echo, logprobs, prompts of every kind, streaming and the end of an answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http

CHAIN = {
    "vocabulary": ["a", "b", "c", "你", "</s>"],
    "eos": "</s>",
    "default": {"a": 1.0},
    "rows": [
        {"after": ["a"], "next": {"b": 0.75, "a": 0.25}},
        {"after": ["b"], "next": {"c": 0.5, "a": 0.3, "</s>": 0.2}},
        {"after": ["c"], "next": {"</s>": 0.9, "a": 0.1}},
        {"after": ["a", "a"], "next": {"你": 1.0}},
    ],
}
A, B, C, NI, EOS = range(5)


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(CHAIN) as server:
        yield server


@pytest.fixture
def api(server: ReferenceServer) -> Iterator[Http]:
    with Http(server) as api:
        yield api


def test_echo_scores_the_prompt_and_goes_on(api: Http) -> None:
    """Each entry scores its own token given those before it; the first is null."""
    body = api.complete(prompt="abc", echo=True, logprobs=2, max_tokens=1, temperature=0)
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abc"
    assert logprobs["tokens"] == ["a", "b", "c", "</s>"]
    assert logprobs["token_logprobs"] == [
        None,
        *map(pytest.approx, map(math.log, (0.75, 0.5, 0.9))),
    ]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"b": math.log(0.75), "a": math.log(0.25)}
    assert logprobs["text_offset"] == [0, 1, 2, 3]


def test_echo_without_generating(api: Http) -> None:
    """max_tokens 0 with echo evaluates the prompt only."""
    body = api.complete(prompt=[A, B], echo=True, logprobs=1, max_tokens=0)
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 2
    assert body["usage"]["completion_tokens"] == 0


def test_an_impossible_token_scores_minus_9999(api: Http) -> None:
    """JSON has no infinity; vLLM's clamp stands for it."""
    body = api.complete(prompt=[C, C], echo=True, logprobs=1, max_tokens=0)
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [None, -9999.0]


def test_logprobs_0_reports_the_token_itself(api: Http) -> None:
    """No alternatives, but the token that was chosen."""
    body = api.complete(prompt=[A], logprobs=0, max_tokens=1, temperature=0)
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"b": math.log(0.75)}]


def test_a_token_outside_the_top_is_reported_beside_it(api: Http) -> None:
    """N alternatives and the chosen token make N + 1 entries."""
    body = api.complete(prompt=[B], logprobs=1, max_tokens=1, logit_bias={C: -100, EOS: -100})
    assert body["choices"][0]["text"] == "a"
    top = body["choices"][0]["logprobs"]["top_logprobs"][0]
    assert top == {"c": math.log(0.5), "a": pytest.approx(math.log(0.3))}


def test_more_than_20_logprobs_are_refused(api: Http) -> None:
    """The cap is named in the message."""
    answer = api.post("/v1/completions", prompt="a", logprobs=21)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "logprobs: expected at most 20, got 21"


def test_ids_may_name_the_tokens(api: Http) -> None:
    """return_tokens_as_token_ids gives names that never collide."""
    body = api.complete(
        prompt=[A, B], echo=True, logprobs=1, max_tokens=0, return_tokens_as_token_ids=True
    )
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:0", "token_id:1"]
    assert logprobs["top_logprobs"][1] == {"token_id:1": math.log(0.75)}


def test_ids_may_stand_beside_the_answer(api: Http) -> None:
    """return_token_ids: the generated ones of each choice, the end token among them."""
    asked = {"prompt": [A], "max_tokens": 9, "temperature": 0, "return_token_ids": True}
    (choice,) = api.complete(**asked)["choices"]
    assert (choice["text"], choice["token_ids"]) == ("bc", [B, C, EOS])
    chunks = api.stream("/v1/completions", **asked)
    shown = [chunk["choices"][0]["token_ids"] for chunk in chunks]
    assert [token for ids in shown for token in ids] == [B, C, EOS]
    assert "token_ids" not in api.complete(**{**asked, "return_token_ids": False})["choices"][0]


def test_the_end_token_counts_and_is_listed_but_not_shown(api: Http) -> None:
    """As in vLLM: usage and logprobs include EOS, the text doesn't."""
    body = api.complete(prompt=[A], logprobs=1, max_tokens=9, temperature=0)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("bc", "stop")
    assert choice["logprobs"]["tokens"] == ["b", "c", "</s>"]
    assert body["usage"]["completion_tokens"] == 3


def test_ignore_eos_goes_on(api: Http) -> None:
    """The end token is then one like any other, only invisible."""
    body = api.complete(prompt=[A], max_tokens=5, temperature=0, ignore_eos=True)
    assert body["choices"][0]["text"] == "bcab"
    assert body["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", ["b"]),
        ([A], ["b"]),
        (["a", "b"], ["b", "c"]),
        ([[A], [B], [A, A]], ["b", "c", "你"]),
        (["a", [B]], ["b", "c"]),
    ],
)
def test_prompts_of_every_kind(api: Http, prompt: object, texts: list[str]) -> None:
    """A text, ids, and lists of either; choices come back in order."""
    body = api.complete(prompt=prompt, max_tokens=1, temperature=0)
    assert [c["text"] for c in body["choices"]] == texts
    assert [c["index"] for c in body["choices"]] == list(range(len(texts)))


def test_n_choices_for_each_prompt(api: Http) -> None:
    """Index is prompt · n + choice; the prompt is billed once, the answers each."""
    body = api.complete(prompt=["a", "b"], n=3, max_tokens=1, temperature=0)
    assert [c["text"] for c in body["choices"]] == ["b", "b", "b", "c", "c", "c"]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 6


def test_a_fan_out_reads_its_common_prefix_from_the_cache() -> None:
    """Later entries of one call are only charged for what the earlier ones didn't compute."""
    common = [A, B, C, NI, A, B, C, NI]
    prompts = [common, [*common, A], [*common, A, B]]
    with ReferenceServer(CHAIN) as server, Http(server) as api:
        body = api.complete(prompt=prompts, max_tokens=1, temperature=0)
    assert body["usage"]["prompt_tokens"] == 8 + 9 + 10
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 + 8 + 9


def test_echo_reads_nothing_from_the_cache(api: Http) -> None:
    """Scoring is charged for the whole prompt, however often it is repeated."""
    for _ in range(2):
        body = api.complete(prompt=[NI, NI, A, B], echo=True, logprobs=1, max_tokens=1)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert api.server.log[-1].charged_prompt_tokens == 4
    body = api.complete(prompt=[NI, NI, A, B], max_tokens=1)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


def test_a_stream_says_what_the_whole_answer_says(api: Http) -> None:
    """The same texts, logprobs, offsets, finish and usage, one chunk a token."""
    asked = {"prompt": [A], "echo": True, "logprobs": 2, "max_tokens": 9, "temperature": 0}
    whole = api.complete(**asked)
    *chunks, last = api.stream("/v1/completions", stream_options={"include_usage": True}, **asked)
    assert last["choices"] == []
    assert last["usage"] == {**whole["usage"]}
    parts = [chunk["choices"][0] for chunk in chunks]
    assert [part["text"] for part in parts] == ["a", "b", "c", ""]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    for key, values in whole["choices"][0]["logprobs"].items():
        assert [value for part in parts for value in part["logprobs"][key]] == values
    assert [part["finish_reason"] for part in parts] == [None, None, None, "stop"]


def test_streams_of_several_choices_interleave(api: Http) -> None:
    """Each chunk names its choice; each choice finishes once."""
    chunks = api.stream("/v1/completions", prompt=["a", "b"], n=2, max_tokens=9, temperature=0)
    texts = ["", "", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["bc", "bc", "c", "c"]
    assert sum(chunk["choices"][0]["finish_reason"] == "stop" for chunk in chunks) == 4


@pytest.mark.parametrize(
    ("stop", "text", "tokens"), [("c", "b", 2), (["x", "bc"], "", 2), ("b", "", 1), ("bx", "bc", 3)]
)
def test_stop_strings_end_the_text_before_them(
    api: Http, stop: object, text: str, tokens: int
) -> None:
    """Streamed and not; what could begin a stop string is held back until it is known."""
    asked = {"prompt": [A], "max_tokens": 9, "temperature": 0, "stop": stop}
    body = api.complete(**asked)
    assert body["choices"][0]["text"] == text
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == tokens
    chunks = api.stream("/v1/completions", **asked)
    assert "".join(c["choices"][0]["text"] for c in chunks) == text


def test_a_character_in_pieces_is_shown_whole() -> None:
    """Bytes of one character never reach the client apart; the token count is still right."""
    script = {"vocabulary": ["x"], "answers": [{"when": "go", "text": "é好"}]}
    with ReferenceServer(script) as server, Http(server) as api:
        chunks = api.stream("/v1/completions", prompt="go", max_tokens=9)
    assert [c["choices"][0]["text"] for c in chunks] == ["", "é", "", "", "好", ""]


def test_a_seed_repeats_and_its_absence_follows_the_servers() -> None:
    """The same seed gives the same answer; without one, the order of requests decides."""
    runs = []
    for _ in range(2):
        with ReferenceServer(CHAIN, seed=7) as server, Http(server) as api:
            asked = {"prompt": [A], "max_tokens": 12, "ignore_eos": True}
            seeded = [api.complete(seed=3, **asked)["choices"][0]["text"] for _ in range(2)]
            free = [api.complete(**asked)["choices"][0]["text"] for _ in range(4)]
        assert seeded[0] == seeded[1]
        assert len(set(free)) > 1
        runs.append((seeded, free))
    assert runs[0] == runs[1]


def test_penalties_turn_from_what_was_said(api: Http) -> None:
    """A presence penalty of 2 outweighs odds of 3 to 1."""
    row = {"vocabulary": ["a", "b"], "default": {"a": 0.75, "b": 0.25}}
    with ReferenceServer(row) as server, Http(server) as api:
        body = api.complete(prompt="a", max_tokens=3, temperature=0, presence_penalty=2)
    assert body["choices"][0]["text"] == "aba"


def test_logprobs_are_raw_whatever_the_sampling(api: Http) -> None:
    """Before temperature and bias, like vLLM's."""
    body = api.complete(
        prompt=[A], max_tokens=1, logprobs=2, temperature=0.3, top_k=1, logit_bias={A: 50}
    )
    assert body["choices"][0]["text"] == "a"
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [math.log(0.25)]


def test_a_prompt_that_doesnt_fit_is_refused(api: Http) -> None:
    """Prompt and answer together have to."""
    answer = api.post("/v1/completions", prompt=[A] * 10, max_tokens=8190)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"

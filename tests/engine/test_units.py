"""The pure parts around the loop: answers, evidence, prefills, chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.answer import Answer
from specroute.http.chunks import Encoder
from specroute.target import prefill
from specroute.target.stream import Piece
from specroute.target.view import Position
from specroute.types import Usage
from tests.engine.answers import TEXT, VOCABULARY, script
from tests.engine.world import World

WORLD = World(script())
EOS = WORLD.eos
IDS = WORLD.vocabulary.encode(TEXT)


def encode(text: str) -> tuple[int, ...]:
    return WORLD.vocabulary.encode(text)


def answer(max_tokens: int | None = None, *stop: str) -> Answer:
    made = Answer(max_tokens=max_tokens, stop=stop)
    made.use(WORLD.vocabulary)
    return made


# Answer


@pytest.mark.parametrize(
    ("ids", "limit", "stop", "text", "finish", "tokens"),
    [
        ("one, two", None, (), "one, two", None, 3),
        ("one, two", 2, (), "one, ", "length", 2),
        ("one, two", 3, (), "one, two", "length", 3),
        ("one, two", None, ("two",), "one, ", "stop", 3),
        ("one, two", None, ("e, t",), "on", "stop", 3),
        ("one, two", 3, ("two",), "one, ", "stop", 3),
        ("one, two, three", None, ("three", "two"), "one, ", "stop", 3),
        ("one, two", None, ("wo, x",), "one, t", None, 3),
        ("one, two", 3, ("wo, x",), "one, two", "length", 3),
        ("你好", None, (), "你好", None, 2),
        ("ñ", 1, (), "\ufffd", "length", 1),
        ("ñ", None, (), "ñ", None, 2),
    ],
    ids=str,
)
def test_ids_become_text_and_end(
    ids: str, limit: int | None, stop: tuple[str, ...], text: str, finish: str | None, tokens: int
) -> None:
    """Whether they come at once or one by one; what might become a stop string is held."""
    at_once = answer(limit, *stop)
    delta = at_once.push_ids(encode(ids))
    assert (delta.text, delta.finish, at_once.tokens) == (text, finish, tokens)
    singly = answer(limit, *stop)
    said = ""
    for token in encode(ids):
        if singly.finish is None:
            said += singly.push_ids((token,)).text
    assert (said, singly.finish, singly.tokens) == (text, finish, tokens)


def test_an_end_token_ends_and_counts() -> None:
    """What comes after it is dropped, what was held is released."""
    made = answer(None, "two, x")
    delta = made.push_ids((*encode("one, two"), EOS, *encode("six")))
    assert (delta.text, delta.finish, made.tokens) == ("one, two", "stop", 4)
    assert made.ended_by_token
    assert made.ids == list(encode("one, two"))


def test_text_after_ids_keeps_unfinished_bytes_and_stops() -> None:
    """At a hand-over: no ids any more, a stop string across the seam is found."""
    made = answer(9, "two, th")
    assert made.push_ids(encode("one, two")).text == "one, "
    assert made.held == "two"
    delta = made.push_text(", three", tokens=2, limited=False)
    assert (delta.text, delta.finish, made.ids) == ("", "stop", None)


@pytest.mark.parametrize(
    ("limited", "finish"), [(True, "length"), (False, None)], ids=["ours", "the server's"]
)
def test_max_tokens_is_counted_only_where_tokens_are_certain(
    limited: bool, finish: str | None
) -> None:
    """A server that keeps the limit itself may send a token in two chunks."""
    made = answer(2)
    made.push_text("on", tokens=1, limited=limited)
    assert made.push_text("e", tokens=1, limited=limited).finish == finish


@given(st.lists(st.sampled_from(VOCABULARY), max_size=12), st.data())
def test_any_grouping_of_commits_gives_the_same_text(words: list[str], data: Any) -> None:
    """With a stop string out of the text or not."""
    ids = encode("".join(words))
    whole = "".join(words)
    start = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    stop = (whole[start : start + data.draw(st.integers(1, 6))],) if whole else ()
    one, many, said, at = answer(None, *stop), answer(None, *stop), "", 0
    expected = one.push_ids(ids).text
    while at < len(ids) and many.finish is None:
        size = data.draw(st.integers(1, 4))
        said += many.push_ids(ids[at : at + size]).text
        at += size
    assert (said, many.finish) == (expected, one.finish)


# Evidence


def test_ties_go_to_the_lowest_id() -> None:
    """As argmax does in servers."""
    assert Position(7, -1.0, ((7, -1.0), (3, -1.0), (9, -2.0))).argmax == 3
    assert Position("b", -1.0, (("b", -1.0), ("a", -1.0))).argmax == "b"


# Prefill

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "q"}]}


@pytest.mark.parametrize(
    ("dialect", "last", "more"),
    [
        ("continue_final_message", {}, {"continue_final_message": True, "add_generation_prompt": False}),
        ("prefix", {"prefix": True}, {}),
        ("partial", {"partial": True}, {}),
        ("trailing_assistant", {}, {}),
        ("body_prefix", None, {"prefix": "so"}),
    ],
)  # fmt: skip
def test_each_dialect_is_one_small_change(
    dialect: str, last: dict[str, Any] | None, more: dict[str, Any]
) -> None:
    """Of the caller's own body, which stays as it is."""
    before = json.dumps(CHAT_BODY)
    body = prefill.continued(CHAT_BODY, "so", dialect)
    messages = [*CHAT_BODY["messages"]]
    if last is not None:
        messages.append({"role": "assistant", "content": "so", **last})  # type: ignore[arg-type]
    assert body == {"model": "m", "messages": messages, **more}
    assert json.dumps(CHAT_BODY) == before
    assert prefill.continued(CHAT_BODY, "", dialect) == CHAT_BODY


@given(st.text("ab ", max_size=6), st.text("abc ", max_size=8), st.lists(st.integers(1, 4)))
def test_a_repeated_prefill_is_taken_off_however_it_is_cut(
    prefix: str, new: str, sizes: list[int]
) -> None:
    """And what does not repeat it stays whole."""
    for reply, expected in ((prefix + new, new), ("zz" + new, "zz" + new)):
        strip, out, rest = prefill.PrefixEcho(prefix), "", reply
        for size in [*sizes, len(reply) + 1]:
            out += strip.feed(rest[:size])
            rest = rest[size:]
        assert out + strip.flush() == expected


# Chunks


def encoder(chat: bool, include_usage: bool = False) -> Encoder:
    return Encoder(chat=chat, answer_id="x", model="m", created=7, include_usage=include_usage)


def read(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    value: dict[str, Any] = json.loads(data[6:])
    return value


def test_a_chat_s_chunks_have_one_role_and_one_finish() -> None:
    """OpenAI's shapes."""
    made = encoder(True)
    first, second, last = read(made.text("a")), read(made.text("b")), read(made.finish("stop"))
    assert first == {
        "id": "chatcmpl-x",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "logprobs": None,
                "finish_reason": None,
                "delta": {"role": "assistant", "content": "a"},
            }
        ],
    }
    assert second["choices"][0]["delta"] == {"content": "b"}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert made.usage(Usage(1, 2)) == b""


def test_usage_has_a_chunk_of_its_own() -> None:
    """Every other one then has ``usage: null``."""
    made = encoder(False, True)
    assert read(made.text("a"))["usage"] is None
    assert read(made.text("a"))["choices"][0]["text"] == "a"
    last = read(made.usage(Usage(3, 4)))
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_whole_answers_and_other_fields() -> None:
    """What is beside the text of a chat's message goes along."""
    whole = encoder(True).whole("a", "stop", Usage(1, 1), {"reasoning_content": "hm"})
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm",
    }
    plain = encoder(False).whole("a", "length", Usage(None, None))
    assert plain["choices"][0]["text"] == "a"
    assert plain["usage"]["total_tokens"] == 0
    delta = read(encoder(True).text("", {"reasoning_content": "hm"}))["choices"][0]["delta"]
    assert delta == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_a_piece_counts_the_tokens_it_shows() -> None:
    """And says that it shows none."""
    assert Piece("ab", None, ("a", "b")).tokens == 2
    assert Piece("ab").tokens is None

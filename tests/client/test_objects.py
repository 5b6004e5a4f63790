"""The objects made the short way are those that openai makes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from specroute import AsyncSpecRoute
from specroute.openai_seam import objects

RESPONSE = httpx2.Response(200, request=httpx2.Request("POST", "http://127.0.0.1:1/v1"))

LOGPROB = {
    "token": "Hi",
    "bytes": [72, 105],
    "logprob": -1,
    "top_logprobs": [{"token": "Hi", "bytes": None, "logprob": -0.25, "rank": 1}],
}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1, "seen": 2},
    "queue_time": 0.5,
}
HEAD: dict[str, Any] = {"id": "chatcmpl-1", "created": 1764400000, "model": "m", "x_more": {"a": 1}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "strict": 1}}

CHUNK = {
    **HEAD,
    "object": "chat.completion.chunk",
    "service_tier": "default",
    "choices": [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "Hi", "reasoning_content": "so"},
            "logprobs": {"content": [LOGPROB]},
            "finish_reason": None,
            "token_ids": [1],
        },
        {
            "index": 1,
            "delta": {"tool_calls": [{"index": 0, **CALL}]},
            "finish_reason": "tool_calls",
        },
    ],
    "usage": USAGE,
}
ANSWER = {
    **HEAD,
    "object": "chat.completion",
    "system_fingerprint": None,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "annotations": [], "mood": "good"},
            "logprobs": {"content": [LOGPROB], "refusal": None},
            "finish_reason": "stop",
            "stop_reason": None,
        },
        {
            "index": 1,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    CALL,
                    {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}},
                ],
            },
            "finish_reason": "tool_calls",
        },
    ],
    "usage": USAGE,
    "specroute": {"id": "sr-1", "attempts": [{"target": "a:m"}]},
}


def shown(value: Any) -> Any:
    """All there is to see of an object, types and what counts as set included."""
    if isinstance(value, pydantic.BaseModel):
        fields = {name: shown(each) for name, each in vars(value).items()}
        extra = {name: shown(each) for name, each in (value.__pydantic_extra__ or {}).items()}
        private = value.__pydantic_private__
        return (
            type(value),
            list(fields.items()),
            list(extra.items()),
            value.model_fields_set,
            private,
        )
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return type(value), value


THEIRS = openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:1/v1")
OURS = AsyncSpecRoute(api_key="k", base_url="http://127.0.0.1:1/v1")


def openais(kind: type[Any], data: Any) -> Any:
    """What openai's own client makes of it."""
    return THEIRS._process_response_data(data=data, cast_to=kind, response=RESPONSE)


def ours(kind: type[Any], data: Any) -> Any:
    return OURS._process_response_data(data=data, cast_to=kind, response=RESPONSE)


KINDS = [
    pytest.param(ChatCompletionChunk, CHUNK, id="a piece of a stream"),
    pytest.param(ChatCompletion, ANSWER, id="a whole answer"),
]


@pytest.mark.parametrize(("kind", "data"), KINDS)
def test_what_is_as_it_should_be_is_made_the_short_way(kind: type[Any], data: Any) -> None:
    """And is openai's object, fields of the provider's own included, in repr, JSON and dict."""
    short = objects.made(kind, copy.deepcopy(data))
    theirs = openais(kind, copy.deepcopy(data))
    assert short is not None
    assert shown(short) == shown(theirs)
    assert repr(short) == repr(theirs)
    assert short.to_json() == theirs.to_json()
    assert short.to_dict() == theirs.to_dict()


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, its own first."""
    yield here
    if isinstance(value, dict):
        inner: list[tuple[Any, Any]] = list(value.items())
    else:
        inner = list(enumerate(value)) if isinstance(value, list) else []
    for key, each in inner:
        yield from places(each, (*here, key))


LEFT_OUT = object()
ODD = st.one_of(
    st.just(LEFT_OUT),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(), max_size=3),
    st.sampled_from(["stop", "assistant", "user", "function", "custom", "1", "\ud800", 1.0, 2**70]),
    st.lists(st.integers() | st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([LOGPROB, USAGE, CALL, [CALL], [LOGPROB]]),
)


def put(data: Any, at: tuple[Any, ...], what: Any) -> Any:
    """``data`` with something else in one place."""
    if not at:
        return data if what is LEFT_OUT else copy.deepcopy(what)
    *way, last = at
    inner = data
    for key in way:
        inner = inner[key]
        if not isinstance(inner, dict | list):
            return data
    if isinstance(inner, list) and not (isinstance(last, int) and last < len(inner)):
        return data
    if what is LEFT_OUT:
        if isinstance(inner, list) or last in inner:
            del inner[last]
    else:
        inner[last] = copy.deepcopy(what)
    return data


@st.composite
def changed(draw: st.DrawFn, data: Any) -> Any:
    """An answer as some server might send it: one to three places hold something else, or more."""
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(data, dict):
            break
        at = draw(st.sampled_from(list(places(data))))
        if draw(st.booleans()):
            at = (*at, draw(st.sampled_from(["x", "content", "role", "logprobs", "usage", "type"])))
        with suppress(KeyError, TypeError):  # No such place any more, or it can't hold anything.
            data = put(data, at, draw(ODD))
    return data


@pytest.mark.parametrize(("kind", "data"), KINDS)
def test_whatever_comes_the_object_is_openais(kind: type[Any], data: Any) -> None:
    """Made the short way or left to openai: nobody can tell from the object."""

    @given(changed(data))
    def check(odd: Any) -> None:
        try:
            expected = shown(openais(kind, copy.deepcopy(odd)))
        except Exception as error:  # noqa: BLE001 - whatever openai makes of it
            with pytest.raises(type(error)):
                ours(kind, odd)
            return
        assert shown(ours(kind, odd)) == expected

    check()


def test_a_client_that_validates_strictly_still_does() -> None:
    """``_strict_response_validation`` refuses what the loose way takes."""
    client = AsyncSpecRoute(
        api_key="k", base_url="http://127.0.0.1:1/v1", _strict_response_validation=True
    )
    with pytest.raises(openai.APIResponseValidationError):
        client._process_response_data(
            data={**CHUNK, "choices": 1}, cast_to=ChatCompletionChunk, response=RESPONSE
        )

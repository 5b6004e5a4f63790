"""Deadline arithmetic, retry rules and byte surgery: pure functions."""

from __future__ import annotations

import json
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.config import Timeouts
from specroute.errors import (
    BadAnswer,
    ConnectFailed,
    DeadlineExceeded,
    SpecRouteError,
    StreamTruncated,
)
from specroute.http import retry, wire
from specroute.http.deadline import Deadline
from specroute.types import Usage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_may_fail_is_over_before_its_substitute_is_due() -> None:
    """All of it, not only its first token: a body that never ends costs no more than silence."""
    clock = Clock()
    deadline = Deadline(Timeouts(connect=5, first_token=8, stall=15, total=60), clock)
    part = deadline.part(0.5)
    assert [part.remaining(w) for w in ("first_token", "stall", "total")] == [4, 4, 4]
    assert deadline.part(0.5, 3).remaining("total") == 3


BILLED = {"prompt_tokens": 9, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": BILLED, "meta_info": {"prompt_tokens": 1}}, Usage(9, 2)),
        ({"text": "a", "meta_info": {**BILLED, "cached_tokens": 4}}, Usage(9, 2, 4)),
        (
            {"answers": [{"meta_info": {**BILLED, "cached_tokens": n}} for n in (0, 8)]},
            Usage(18, 4, 8),
        ),
        ({"answers": [{"meta_info": BILLED}, {"text": "a"}]}, Usage()),
        ({"answers": []}, Usage()),
        ({"usage": None, "meta_info": "none"}, Usage()),
        ({}, Usage()),
    ],
)
def test_what_an_answer_used(answer: dict[str, Any], usage: Usage) -> None:
    """``usage`` where there is one, else what SGLang's native answers say, of all in a list."""
    assert wire.usage_in(answer) == usage


def test_what_a_deadline_leaves() -> None:
    """Each limit, as time goes by; total caps them all."""
    clock = Clock()
    deadline = Deadline(Timeouts(connect=5, first_token=8, stall=15, total=20), clock)
    clock.now = 104.0
    assert [deadline.remaining(w) for w in ("connect", "first_token", "stall", "total")] == [
        4,
        4,
        15,
        16,
    ]
    clock.now = 110.0
    assert deadline.remaining("stall") == 10
    assert deadline.limit(None) == (108, "first_token")
    assert deadline.limit(None, held=3) == (111, "first_token")
    assert deadline.limit(104) == (119, "stall")
    assert deadline.limit(110) == (120, "total")
    with pytest.raises(ValueError, match="expected connect"):
        deadline.remaining("forever")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 GMT"}, 10.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e999"}, 121.0),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], expected: float | None) -> None:
    """Milliseconds before seconds before a date."""
    assert retry.retry_after(headers, 1000.0) == expected


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (408, {}, True),
        (409, {}, True),
        (429, {}, True),
        (500, {}, True),
        (503, {}, True),
        (400, {}, False),
        (401, {}, False),
        (404, {}, False),
        (422, {}, False),
        (400, {"x-should-retry": "true"}, True),
        (500, {"x-should-retry": "false"}, False),
        (429, {"retry-after": "121"}, False),
        (429, {"retry-after": "120"}, True),
    ],
)
def test_which_statuses_are_tried_again(
    status: int, headers: dict[str, str], expected: bool
) -> None:
    """openai's rules."""
    assert retry.status_retryable(status, headers, 0.0) is expected


def test_which_errors_are_tried_again() -> None:
    """No connection, a cut, a slow connect; a deadline that spans attempts is not."""

    def passed(which: str) -> SpecRouteError:
        return DeadlineExceeded("", provider="p", which=which, seconds=1)

    yes = [ConnectFailed("", provider="p"), StreamTruncated("", provider="p"), passed("connect")]
    no = [passed("first_token"), passed("total"), BadAnswer("", provider="p")]
    assert [retry.error_retryable(e) for e in yes + no] == [True] * 3 + [False] * 3


def test_backoff() -> None:
    """Doubles from half a second to eight, less up to a quarter; the server's word comes first."""
    rng = Random(1)
    for taken in range(8):
        full = min(0.5 * 2**taken, 8.0)
        assert 0.75 * full <= retry.delay(taken, None, 0.0, rng) <= full
    assert retry.delay(0, {"retry-after": "3"}, 0.0, rng) == 3
    assert retry.delay(0, {"retry-after": "500"}, 0.0, rng) <= 0.5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5).map(lambda d: {**d, "model": "smart"}), JSON)
def test_spliced_bytes_are_what_re_encoding_gives(body: dict[str, object], extra: object) -> None:
    """Replacing the model and adding a field change nothing else, whatever the body holds."""
    raw = wire.dumps(body)
    changed = json.loads(wire.replace_model(raw, "smart", "big"))
    assert changed == {**body, "model": "big"}
    body.pop("added", None)
    raw = wire.dumps(body)
    assert json.loads(wire.splice_field(raw, "added", wire.dumps(extra))) == {
        **body,
        "added": extra,
    }


def test_a_nested_model_key_is_left_alone() -> None:
    """Only the top-level key is the request's model."""
    body = wire.dumps({"metadata": {"model": "smart"}, "model": "smart"})
    assert json.loads(wire.replace_model(body, "smart", "big")) == {
        "metadata": {"model": "smart"},
        "model": "big",
    }


@pytest.mark.parametrize(
    ("base", "hint"),
    [
        ("http://h:1", "most OpenAI-format servers want http://h:1/v1"),
        ("http://h:1/", "most OpenAI-format servers want http://h:1/v1"),
        ("http://h:1/v1/v1", "it has /v1 twice"),
        ("http://user:secret@h:1/v1?key=secret", "check that the server's API lives there"),
    ],
)
def test_base_url_hints(base: str, hint: str) -> None:
    """A hint names the likely mistake and never what may be a secret."""
    text = wire.base_url_hint(base)
    assert hint in text
    assert "secret" not in text


def test_status_messages_are_openais() -> None:
    """The provider's message where the body has one."""
    bodies = [
        b'{"error":{"message":"no"}}',
        b'{"message":"no"}',
        b'{"error":"no"}',
        b"<html>",
        b"[]",
    ]
    assert [wire.status_message(429, body) for body in bodies] == [
        "Error code: 429 - no",
        "Error code: 429 - no",
        "Error code: 429",
        "Error code: 429",
        "Error code: 429",
    ]


def test_no_limit_is_infinity() -> None:
    """An unlimited deadline never passes."""
    from specroute.http.deadline import UNLIMITED

    assert Deadline(UNLIMITED).remaining("total") == inf

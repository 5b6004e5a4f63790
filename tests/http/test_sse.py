"""The event decoder: the same bytes give the same events, and nothing crashes it."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specroute.errors import BadAnswer, SpecRouteError
from specroute.http.sse import SseDecoder, SseEvent


def decode(*pieces: bytes, limit: int = 1 << 20) -> list[SseEvent]:
    decoder = SseDecoder("lab", limit)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.flush()


def payloads(*pieces: bytes) -> list[bytes]:
    return [event.payload for event in decode(*pieces) if event.payload]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\ndata: b\n\r\n", [b"a\nb"]),
        (b": a comment\n\ndata: a\n\n", [b"a"]),
        (b": a comment\ndata: a\n\n", [b"a"]),
        (b"data:\n\ndata: a\n\n", [b"a"]),
        (b"data\n\ndata: a\n\n", [b"a"]),
        (b"event: ping\n\ndata: a\n\n", [b"a"]),
        (b"id: 1\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: [DONE]\n", [b"[DONE]"]),
        (b"", []),
    ],
)
def test_the_event_stream_format(data: bytes, expected: list[bytes]) -> None:
    """Line ends, comments, empty and multi-line data, the byte-order mark, a missing last blank."""
    assert payloads(data) == expected
    assert payloads(*(data[i : i + 1] for i in range(len(data)))) == expected


def test_events_know_what_they_bring() -> None:
    """Content, finish reason, usage, error and the end are told apart by bytes alone."""

    def one(value: object, name: bytes = b"") -> SseEvent:
        raw = json.dumps(value).encode()
        return SseEvent(raw, raw, name)

    text = one({"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]})
    role = one({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    tool = one({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})
    quoted = one(
        {"choices": [{"delta": {"content": ""}}], "x": '"content": "a", "usage": {"a": 1}'}
    )
    finish = one({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    usage = one({"choices": [], "usage": {"prompt_tokens": 1}})
    assert [e.has_content for e in (text, role, tool, quoted, finish, usage)] == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    assert [e.has_finish for e in (text, role, finish)] == [False, False, True]
    assert [e.only_usage for e in (usage, quoted, text)] == [True, False, False]
    assert one({"error": {"message": "m"}}).error == {"message": "m"}
    assert one({"error": None}).error is None
    assert one({"message": "m"}, b"error").error == {"message": "m"}
    assert SseEvent(b"", b"boom", b"error").error == {"message": "boom"}
    assert SseEvent(b"", b"[DONE]").done


@pytest.mark.parametrize("payload", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_payload_that_is_no_object_is_a_bad_answer(payload: bytes) -> None:
    """Neither broken JSON, nor another type, nor bad UTF-8, nor deep nesting gets further."""
    with pytest.raises(BadAnswer):
        _ = SseEvent(payload, payload).data


def test_an_event_without_end_is_refused() -> None:
    """What is buffered is bounded."""
    decoder = SseDecoder("lab", 1000)
    with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
        for _ in range(20):
            decoder.feed(b"data: " + b"x" * 100)
    with pytest.raises(BadAnswer):
        decode(b"data: " + b"x" * 2000 + b"\n\n", limit=1000)


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data: caf\xc3\xa9",
        b"data:",
        b"data",
        b": ping",
        b"event: error",
        b"id: 3",
        b"",
        b"data: [DONE]",
        b"\xef\xbb\xbf",
        b"x",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=30).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@settings(max_examples=700, deadline=None)
@given(st.one_of(STREAMS, st.binary(max_size=200)), st.lists(st.integers(0, 400), max_size=30))
def test_any_chunking_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    """However the network cuts the bytes, the events are the same."""
    places = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    whole = [(e.payload, e.name) for e in decode(data)]
    assert [(e.payload, e.name) for e in decode(*pieces)] == whole


@settings(max_examples=700, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_random_bytes_raise_nothing_untyped(pieces: list[bytes]) -> None:
    """Every property of every event of any bytes works, or is a typed error."""
    for event in decode(*pieces):
        _ = event.has_content, event.has_finish, event.has_usage, event.only_usage, event.done
        for name in ("error", "data"):
            with contextlib.suppress(SpecRouteError):
                getattr(event, name)

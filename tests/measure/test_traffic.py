"""Traffic classes: alike what is likely answered alike, from what is cheap to see."""

from __future__ import annotations

from typing import Any

import pytest

from specroute.measure import traffic_class
from specroute.measure.traffic import lineage, looks_like_code
from specroute.request import CHAT, COMPLETIONS, TextRequest

CODE = "def area(r):\n    return 3.14 * r * r\n\nfor i in range(3):\n    print(area(i), i)\n" * 3
PROSE = "The ship left the harbour before dawn, and nobody on the quay saw it go. " * 3


def chat(user: str, system: str | None = None) -> TextRequest:
    messages: list[dict[str, Any]] = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return TextRequest.read(CHAT, {"model": "m", "messages": messages})


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (chat(PROSE), chat("Another question about ships."), True),
        (chat(PROSE), chat(CODE), False),
        (chat(PROSE), chat(PROSE * 20), False),
        (chat(PROSE, "You are a clerk."), chat(PROSE, "You are a poet."), False),
        (
            chat(PROSE, "You are a helpful assistant for a large company. Today: 1 May"),
            chat(PROSE, "You are a helpful assistant for a large company. Today: 2 May"),
            True,
        ),
    ],
)
def test_what_makes_a_class(one: TextRequest, other: TextRequest, alike: bool) -> None:
    """The system prompt's beginning, code or prose, and the prompt's length."""
    assert (traffic_class(one) == traffic_class(other)) is alike


def test_endpoints_differ() -> None:
    """A prompt is no chat."""
    completion = TextRequest.read(COMPLETIONS, {"model": "m", "prompt": PROSE, "max_tokens": 5})
    assert traffic_class(completion).startswith("completions#none/prose/")
    assert traffic_class(chat(PROSE)).startswith("chat#none/prose/")


def test_no_text_is_in_a_class() -> None:
    """Only a digest of the system prompt."""
    assert "clerk" not in traffic_class(chat(PROSE, "You are a clerk."))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "no list"},
        {"messages": ["no object"]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {},
    ],
)
def test_any_body_has_a_class(body: dict[str, Any]) -> None:
    """What can't be speculated on is measured as well."""
    assert traffic_class(TextRequest.read(CHAT, {"model": "m", **body})).startswith("chat#none/")


def test_code_is_told_from_prose() -> None:
    """By signs and indentation, or a fence."""
    assert looks_like_code(CODE)
    assert looks_like_code("Fix this:\n```\nx\n```")
    assert not looks_like_code(PROSE)
    assert not looks_like_code("a = b (sic)")


def test_a_class_has_coarser_ones() -> None:
    """To the one of all requests."""
    assert lineage("chat#a/code/1k") == ("chat#a/code/1k", "chat#a", "")
    assert lineage("t") == ("t", "")
    assert lineage("") == ("",)

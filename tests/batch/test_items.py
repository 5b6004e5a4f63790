"""What a batch may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from specroute.batch import read_requests
from specroute.errors import RequestError

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_bodies_and_lines_may_be_mixed() -> None:
    """Arguments of create and lines of a batch file become the same kind of request."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "e"}}
    chat, text, embed = read_requests([CHAT, {"model": "m", "prompt": "Once"}, line])
    assert (chat.path, chat.body) == ("/chat/completions", CHAT)
    assert text.path == "/completions"
    assert (embed.custom_id, embed.path, embed.body) == ("a", "/embeddings", {"model": "e"})


def test_made_ids_are_unique_and_do_not_depend_on_the_order() -> None:
    """Equal bodies get different ids; a body keeps its id when others come before it."""
    other = {**CHAT, "temperature": 0}
    first, second, third = read_requests([CHAT, CHAT, other])
    assert len({first.custom_id, second.custom_id, third.custom_id}) == 3
    moved = read_requests([other, CHAT])
    assert {moved[0].custom_id, moved[1].custom_id} == {third.custom_id, first.custom_id}


def test_a_made_id_never_takes_a_given_one() -> None:
    """An id that the caller uses is not made for another request."""
    (made,) = read_requests([CHAT])
    given = {"custom_id": made.custom_id, "body": {**CHAT, "model": "n"}}
    found = read_requests([CHAT, given])
    assert len({request.custom_id for request in found}) == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("text", "must be an object, got str"),
        ({"model": "m"}, "neither 'messages' nor 'prompt'"),
        ({**CHAT, "model": ""}, "model must be a name, got ''"),
        ({**CHAT, "stream": True}, "stream must be false"),
        ({**CHAT, "temperature": float("nan")}, "can't be written as JSON"),
        ({"custom_id": 7, "body": CHAT}, "custom_id must be a text"),
        ({"custom_id": "a", "body": []}, "body must be an object, got list"),
        ({"custom_id": "a", "body": CHAT, "url": "chat"}, "url must be a path"),
        ({"custom_id": "a", "body": CHAT, "method": "GET"}, "method must be 'POST'"),
        ({"custom_id": "a", "body": CHAT, "bodies": 1}, "'bodies' is not known"),
    ],
)
def test_a_wrong_entry_is_named(entry: Any, said: str) -> None:
    """The error says which request, what was seen and what was expected."""
    with pytest.raises(RequestError, match="request 2") as caught:
        read_requests([CHAT, entry])
    assert said in str(caught.value)


def test_an_id_used_twice_is_an_error() -> None:
    """Answers could not be told apart."""
    line = {"custom_id": "a", "body": CHAT}
    with pytest.raises(RequestError, match="'a' is that of request 1"):
        read_requests([line, CHAT, line])

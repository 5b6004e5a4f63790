"""The OpenAI wire format as pure functions over bytes and dicts: bodies, errors, hints.

Knows shapes. Deliberately knows no connection and no clock, and re-encodes only what can't be
spliced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from specroute.errors import BadAnswer
from specroute.types import Usage

DONE = b"data: [DONE]\n\n"


def dumps(value: Any, *, lenient: bool = False) -> bytes:
    """Compact UTF-8 JSON, as openai writes it.

    Half a surrogate pair, which has no UTF-8, is escaped as it came. ``ValueError`` for NaN and
    infinity; ``lenient``: they are written as Python reads them, for what a provider sent.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=lenient)
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=lenient).encode()


def sse(value: Any) -> bytes:
    """One ``data:`` event."""
    return b"data: " + dumps(value) + b"\n\n"


def read_object(body: bytes, *, provider: str, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """A JSON object from an answer's body; :class:`BadAnswer` says what came instead."""
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        said = describe(body, headers.get("content-type", ""))
        raise BadAnswer(f"{provider}: expected JSON, got {said}", provider=provider) from error
    if not isinstance(value, dict):
        said = describe(body, headers.get("content-type", ""))
        raise BadAnswer(f"{provider}: expected a JSON object, got {said}", provider=provider)
    return value


def read_answers(body: bytes, *, provider: str, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """As :func:`read_object`; a JSON list of objects is taken as ``{"answers": list}``."""
    if body.lstrip()[:1] == b"[":
        body = b'{"answers":' + body + b"}"
    return read_object(body, provider=provider, headers=headers)


def describe(body: bytes, content_type: str = "") -> str:
    """A short description of an unexpected body, for messages."""
    if not body.strip():
        return "an empty body"
    start = body.lstrip()[:80].decode("utf-8", "replace")
    kind = "HTML" if start[:1] == "<" or "html" in content_type else (content_type or "a body")
    return f"{kind} starting {start!r}"


def finish_reason(choice: Any) -> str | None:
    """A choice's ``finish_reason``; ``None`` where the answer goes on, however that is written."""
    reason = choice.get("finish_reason") if isinstance(choice, Mapping) else None
    return reason if isinstance(reason, str) and reason not in ("", "null") else None


def about_tokens(data: Mapping[str, Any]) -> int:
    """About how many tokens a whole answer's text has, for a server that doesn't say: one for
    every four characters."""
    size = 0
    for choice in data.get("choices") or ():
        message = choice.get("message") if isinstance(choice, Mapping) else None
        text = message.get("content") if isinstance(message, Mapping) else None
        if text is None and isinstance(choice, Mapping):
            text = choice.get("text")
        size += len(text) if isinstance(text, str) else 0
    return -(-size // 4)


def usage_in(data: Mapping[str, Any]) -> Usage:
    """What a whole answer says it used: in ``usage``, or as servers' native bodies do. SGLang's
    ``/generate`` has the counts in ``meta_info``; a list of answers, each its own, is added up."""
    answers = data.get("answers")
    if isinstance(answers, list) and "usage" not in data:
        each = [usage_in(answer) for answer in answers if isinstance(answer, Mapping)]
        return Usage.sum(each)
    meta = data.get("meta_info")
    if "usage" not in data and isinstance(meta, Mapping):
        cached = {"cached_tokens": meta.get("cached_tokens")}
        return Usage.from_wire({**meta, "prompt_tokens_details": cached})
    return Usage.from_wire(data.get("usage"))


def error_in(data: Mapping[str, Any]) -> Any:
    """The error object inside a 200 answer, or ``None``. An answer with choices is an answer."""
    error = data.get("error")
    if error and not data.get("choices"):
        return error
    return None


def check_answer(data: Mapping[str, Any], *, provider: str) -> None:
    """:class:`BadAnswer` for a chat or completions answer without a list of choices that hold
    something."""
    choices = data.get("choices")
    if not (isinstance(choices, list) and choices and all(map(_holds_something, choices))):
        shown = describe(dumps(dict(data), lenient=True), "JSON")
        raise BadAnswer(
            f"{provider}: expected an answer with choices, got {shown}", provider=provider
        )


def _holds_something(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return False
    message = choice.get("message", choice.get("delta"))
    return isinstance(message, Mapping) or isinstance(choice.get("text"), str)


def error_message(error: Any, default: str) -> str:
    """The message of an ``{"error": …}`` object."""
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) and message else default


def status_message(status: int, body: bytes) -> str:
    """``Error code: N - message``, as openai words it (the message only if the body has one)."""
    text = f"Error code: {status}"
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return text
    error = value.get("error", value) if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"{text} - {message}" if isinstance(message, str) and message else text


def show_url(url: str) -> str:
    """A URL without what may hold a secret: user info, query, fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def redact(text: str, secrets: Iterable[str | None]) -> str:
    """``text`` without the secrets that a provider may have echoed in it."""
    for secret in secrets:
        if secret and len(secret) >= 8 and secret in text:
            text = text.replace(secret, "***")
    return text


def redact_value(value: Any, secrets: Iterable[str | None]) -> Any:
    """The same in every text of a JSON value."""
    secrets = tuple(secrets)
    return change_texts(value, lambda text: redact(text, secrets))


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``change`` done to every text of a JSON value, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(k)): change_texts(v, change) for k, v in value.items()}
    return [change_texts(v, change) for v in value] if isinstance(value, list) else value


def base_url_hint(base_url: str) -> str:
    """What to check about a ``base_url`` that answered 404, 405 or with a web page."""
    shown = show_url(base_url).rstrip("/")
    path = urlsplit(shown).path
    if not path.endswith("/v1") and "/v1/" not in path + "/":
        return f"base_url is {shown}: most OpenAI-format servers want {shown}/v1"
    if path.endswith("/v1/v1"):
        return f"base_url is {shown}: it has /v1 twice"
    return f"base_url is {shown}: check that the server's API lives there"


def splice_field(body: bytes, name: str, value: bytes) -> bytes:
    """Add ``"name":value`` as the last field of a JSON object, without decoding it."""
    end = body.rstrip()
    assert end.endswith(b"}")
    head = end[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b","
    return b'%b%b"%b":%b}' % (head, comma, name.encode(), value)


def replace_model(body: bytes, old: str, new: str) -> bytes:
    """Replace the top-level ``model`` of a JSON object, by bytes where that is safe.

    A ``"model":"old"`` that occurs once, unescaped, can only be the key that is known to be there.
    """
    needle = b'"model":' + dumps(old)
    if body.count(needle) == 1:
        return body.replace(needle, b'"model":' + dumps(new))
    data = json.loads(body)
    data["model"] = new
    return dumps(data)


def as_chunks(data: Mapping[str, Any]) -> bytes:
    """A whole JSON answer as the stream it should have been: one chunk and ``[DONE]``."""
    choices = []
    given = data.get("choices")
    for position, choice in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(choice, dict):
            continue
        one = {k: v for k, v in choice.items() if k != "message"}
        one.setdefault("index", position)
        message = choice.get("message")
        if isinstance(message, dict):
            delta = dict(message)
            calls = delta.get("tool_calls")
            if isinstance(calls, list):
                delta["tool_calls"] = [
                    {"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)
                ]
            one["delta"] = delta
        choices.append(one)
    chunk = {**data, "choices": choices}
    chunk.pop("error", None)  # An answer is an answer: openai would raise it instead.
    if chunk.get("object") == "chat.completion":
        chunk["object"] = "chat.completion.chunk"
    return b"data: " + dumps(chunk, lenient=True) + b"\n\n" + DONE

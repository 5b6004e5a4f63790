"""The JSON that goes back: completions and chats, whole and in chunks, in OpenAI's shapes.

Knows field names, logprob layouts and how tokens are called; deliberately not how they were made or
sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from specroute.reference.backend import Backend, Entry
from specroute.reference.batching import Choice, Item
from specroute.reference.text import TextStream

DONE = b"data: [DONE]\n\n"


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON."""
    return _encode(value).encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(value) + b"\n\n"


def usage(
    prompt: int,
    cached: int,
    completion: int,
    details: bool,
    predicted: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """OpenAI's ``usage``; without ``details`` it doesn't say what was cached.

    ``predicted``: (accepted, rejected) tokens of a prediction; the rejected ones count as
    completion tokens.
    """
    if predicted is not None:
        completion += predicted[1]
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if predicted is not None:
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": predicted[0],
            "rejected_prediction_tokens": predicted[1],
        }
    if details:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


class Names:
    """What tokens are called: their text, or ``token_id:N``, which never collides."""

    def __init__(self, backend: Backend, as_ids: bool) -> None:
        self._backend, self._as_ids = backend, as_ids

    def name(self, token: int, own: str | None = None) -> str:
        """``own`` is its text in context; alone, half a character is U+FFFD."""
        if self._as_ids:
            return f"token_id:{token}"
        if own is not None:
            return own
        return self._backend.piece(token).decode("utf-8", "replace")

    def raw(self, token: int) -> list[int]:
        """Its bytes."""
        return list(self._backend.piece(token))


class Shape(Protocol):
    """How one request's answer is laid out."""

    def start(self, choice: Choice) -> bytes:
        """Events that open ``choice`` in a stream, sent with its first item."""

    def chunk(self, item: Item) -> bytes:
        """The event for one item."""

    def usage(self, counts: dict[str, Any]) -> bytes:
        """The event that holds only the usage."""

    def whole(self, choices: Sequence[Sequence[Item]], counts: dict[str, Any]) -> bytes:
        """The unstreamed answer; ``choices`` holds each choice's items, in order of index."""


class CompletionShape:
    """``/v1/completions``: text, and logprobs in the legacy layout of parallel lists."""

    def __init__(
        self,
        backend: Backend,
        names: Names,
        *,
        id: str,
        created: int,
        model: str,
        echoed: dict[int, tuple[str, Choice]],
        logprobs: bool,
        shows_ids: bool,
    ) -> None:
        """``echoed`` maps a choice's index to its prompt's text and the choice that scored it."""
        self._backend, self._names, self._echoed, self._logprobs = backend, names, echoed, logprobs
        self._shows_ids = shows_ids
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        head = dumps({**self._head, "choices": []})[:-2].replace(b"%", b"%%")
        self._chunk = (
            b"data: " + head + b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}]}\n\n'
        )
        self._offsets: dict[int, int] = {}

    def start(self, choice: Choice) -> bytes:
        """The echoed prompt, if any."""
        if choice.index not in self._echoed:
            return b""
        text, logprobs = self._echo(choice.index)
        return event(self._with(choice.index, text, logprobs, None))

    def chunk(self, item: Item) -> bytes:
        """One token's text and logprobs."""
        index = item.choice.index
        if not (self._logprobs or self._shows_ids):
            finish = b'"%b"' % item.finish.encode() if item.finish else b"null"
            return self._chunk % (index, dumps(item.shown), finish)
        logprobs = self._generated(index, [item]) if self._logprobs else None
        return event(self._with(index, item.shown, logprobs, item.finish, [item]))

    def usage(self, counts: dict[str, Any]) -> bytes:
        """``choices`` is empty, as the API has it."""
        return event({**self._head, "choices": [], "usage": counts})

    def whole(self, choices: Sequence[Sequence[Item]], counts: dict[str, Any]) -> bytes:
        """All of it."""
        out = []
        for items in choices:
            index, text, logprobs = items[0].choice.index, "", None
            if index in self._echoed:
                text, logprobs = self._echo(index)
            if self._logprobs:
                generated = self._generated(index, items)
                logprobs = (
                    {k: [*logprobs[k], *generated[k]] for k in generated} if logprobs else generated
                )
            text += "".join(item.shown for item in items)
            whole = self._with(index, text, logprobs, items[-1].finish, items)
            out.append(whole["choices"][0])
        return dumps({**self._head, "choices": out, "usage": counts})

    def _with(
        self,
        index: int,
        text: str,
        logprobs: dict[str, list[Any]] | None,
        finish: str | None,
        items: Sequence[Item] = (),
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        if self._shows_ids:
            choice["token_ids"] = _ids(items)
        return {**self._head, "choices": [choice]}

    def _generated(self, index: int, items: Sequence[Item]) -> dict[str, list[Any]]:
        lists = _lists()
        at = self._offsets.get(index, 0)
        for item in items:
            if item.token is not None:
                self._add(lists, item.token, item.own, item.entry, at)
                if not self._backend.is_special(item.token):
                    at += len(item.own)
        self._offsets[index] = at
        return lists

    def _echo(self, index: int) -> tuple[str, dict[str, list[Any]] | None]:
        text, source = self._echoed[index]
        self._offsets[index] = len(text)
        if not self._logprobs:
            return text, None
        lists, at, stream = _lists(), 0, TextStream()
        entries: list[Entry | None] = [None, *source.scored]
        for token, entry in zip(source.state.ids[: source.prompt_tokens], entries, strict=True):
            own, _ = stream.push(self._backend.piece(token))
            self._add(lists, token, own, entry, at)
            if text.startswith(own, at):  # a BOS isn't in the text
                at += len(own)
        return text, lists

    def _add(
        self, lists: dict[str, list[Any]], token: int, own: str, entry: Entry | None, at: int
    ) -> None:
        name = self._names.name(token, own)
        lists["tokens"].append(name)
        lists["text_offset"].append(at)
        lists["token_logprobs"].append(entry and entry[0])
        tops = None
        if entry:
            tops = {name: entry[0]}
            for other, logprob in entry[1]:
                if other != token:
                    tops.setdefault(self._names.name(other), logprob)
        lists["top_logprobs"].append(tops)


def _ids(items: Sequence[Item]) -> list[int]:
    """An end token among them, which has no text."""
    return [item.token for item in items if item.token is not None]


def _lists() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


class ChatShape:
    """``/v1/chat/completions``: messages and deltas, logprobs as a list of objects."""

    def __init__(
        self,
        names: Names,
        *,
        id: str,
        created: int,
        model: str,
        logprobs: bool,
        shows_ids: bool,
        repeated: str,
        tool: str | None,
    ) -> None:
        """``repeated`` is a prefill to say again; ``tool`` makes the text a call's arguments."""
        self._names, self._logprobs, self._repeated, self._tool = names, logprobs, repeated, tool
        self._shows_ids = shows_ids
        self._id = id
        self._head = {"id": id, "object": "chat.completion", "created": created, "model": model}
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        head = dumps({**self._chunk_head, "choices": []})[:-2].replace(b"%", b"%%")
        self._chunk = (
            b"data: "
            + head
            + b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":%b}]}\n\n'
        )

    def start(self, choice: Choice) -> bytes:
        """The role; then the repeated prefill or the tool call's name."""
        if self._tool:
            call = {"index": 0, **self._call(choice.index, "")}
            return self._event(
                choice.index, {"role": "assistant", "content": None, "tool_calls": [call]}
            )
        opening = self._event(choice.index, {"role": "assistant", "content": ""})
        if self._repeated:
            opening += self._event(choice.index, {"content": self._repeated})
        return opening

    def chunk(self, item: Item) -> bytes:
        """One token's delta."""
        index, finish = item.choice.index, self._finish(item.finish)
        if self._tool:
            call = {"index": 0, "function": {"arguments": item.shown}}
            return self._event(index, {"tool_calls": [call]}, finish=finish)
        if not self._logprobs:
            return self._chunk % (index, dumps(item.shown), dumps(finish))
        return self._event(index, {"content": item.shown}, self._content([item]), finish)

    def usage(self, counts: dict[str, Any]) -> bytes:
        """``choices`` is empty, as the API has it."""
        return event({**self._chunk_head, "choices": [], "usage": counts})

    def whole(self, choices: Sequence[Sequence[Item]], counts: dict[str, Any]) -> bytes:
        """All of it."""
        out = []
        for items in choices:
            index, text = items[0].choice.index, "".join(item.shown for item in items)
            message: dict[str, Any] = {"role": "assistant", "content": self._repeated + text}
            if self._tool:
                message["content"] = None
                message["tool_calls"] = [self._call(index, text)]
            choice = {
                "index": index,
                "message": message,
                "logprobs": self._content(items) if self._logprobs else None,
                "finish_reason": self._finish(items[-1].finish),
            }
            out.append({**choice, "token_ids": _ids(items)} if self._shows_ids else choice)
        return dumps({**self._head, "choices": out, "usage": counts})

    def _call(self, index: int, arguments: str) -> dict[str, Any]:
        function = {"name": self._tool, "arguments": arguments}
        return {"id": f"call_{self._id[-12:]}_{index}", "type": "function", "function": function}

    def _finish(self, finish: str | None) -> str | None:
        return "tool_calls" if self._tool and finish == "stop" else finish

    def _event(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._chunk_head, "choices": [choice]})

    def _content(self, items: Sequence[Item]) -> dict[str, Any]:
        content = []
        for item in items:
            if item.token is None or item.entry is None:
                continue
            tops = [self._one(other, None, logprob) for other, logprob in item.entry[1]]
            one = self._one(item.token, item.own, item.entry[0])
            content.append({**one, "top_logprobs": tops})
        return {"content": content, "refusal": None}

    def _one(self, token: int, own: str | None, logprob: float) -> dict[str, Any]:
        name = self._names.name(token, own)
        return {"token": name, "logprob": logprob, "bytes": self._names.raw(token)}

"""Our own answers in OpenAI's JSON: chunks of a stream, and a whole answer. Pure.

Knows the shapes of ``chat.completion(.chunk)`` and ``text_completion``; the bytes of plain answers
are forwarded and never come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.http import wire
from specroute.provisional import Provisional, Rollback
from specroute.reporting import FIELD
from specroute.types import Usage


class Encoder:
    """Encodes one answer. ``chat``: the chat shapes; else legacy completions.

    ``include_usage``: every chunk has ``usage: null`` and a last one without choices has the count,
    as OpenAI's streams do when asked.
    """

    def __init__(
        self, *, chat: bool, answer_id: str, model: str, created: int, include_usage: bool
    ) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + answer_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._first = True

    @classmethod
    def after(cls, head: Mapping[str, Any], *, chat: bool, include_usage: bool) -> Encoder:
        """For the rest of an answer whose chunks so far had the fields ``head``."""
        made = cls(chat=chat, answer_id="", model="", created=0, include_usage=include_usage)
        made._head = dict(head)
        made._first = False
        return made

    def text(self, text: str, extra: Mapping[str, Any] | None = None) -> bytes:
        """One piece of the answer."""
        return self._chunk(text, None, extra)

    def shown(self, event: Provisional | Rollback) -> bytes:
        """Provisional text or its rollback, for whoever asked for it: a chunk without choices."""
        if isinstance(event, Provisional):
            said: dict[str, Any] = {"provisional": event.text}
        else:
            said = {"rollback": event.n_chars}
        return wire.sse({**self._head, "choices": [], FIELD: said})

    def finish(self, reason: str) -> bytes:
        """The last chunk with a choice."""
        return self._chunk("", reason, None)

    def usage(self, usage: Usage) -> bytes:
        """The chunk that holds the usage, ``b""`` when it was not asked for."""
        if not self._include_usage:
            return b""
        return wire.sse({**self._head, "choices": [], "usage": usage_object(usage)})

    def whole(
        self, text: str, reason: str, usage: Usage, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The answer to a request that is not streamed; ``extra``: a message's other fields."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, **(extra or {})}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice], "usage": usage_object(usage)}

    def _chunk(self, text: str, reason: str | None, extra: Mapping[str, Any] | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._chat:
            delta: dict[str, Any] = {"role": "assistant", "content": text} if self._first else {}
            if text:
                delta["content"] = text
            choice["delta"] = {**delta, **(extra or {})}
        else:
            choice["text"] = text
        self._first = False
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return wire.sse(chunk)


def usage_object(usage: Usage) -> dict[str, Any]:
    """``usage`` as the API shows it; unknown counts are 0, as its schema wants numbers."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }

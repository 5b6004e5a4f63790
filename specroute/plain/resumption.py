"""A plain stream that broke off, taken up from its text: the same answer to its reader.

Knows what the bytes that were handed on come to, and which requests can be gone on with (text
alone: never through tool calls or JSON). Who goes on is a standby's matter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from specroute.answer import Answer
from specroute.book import Book
from specroute.continuing import Continuing, Standby
from specroute.errors import BadAnswer, ProviderError
from specroute.events import Commit
from specroute.http import wire
from specroute.http.chunks import Encoder
from specroute.http.deadline import Deadline
from specroute.http.sse import SseDecoder
from specroute.method.plain import run as run_plain
from specroute.plain.tally import PlainTally
from specroute.request import CHAT, TextRequest
from specroute.target import templates
from specroute.target.target import Target
from specroute.types import Usage

_NOT_TEXT = (
    "audio",
    "best_of",
    "echo",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "grammar",
    "json_schema",
    "logprobs",
    "regex",
    "structured_outputs",
    "suffix",
    "tools",
    "top_logprobs",
)
"""Fields with which an answer is more than its text, or must be whole to be of its form."""
_CHARACTERS_A_TOKEN = 4
_MANY_CHARACTERS = 8
"""A piece that is longer than that on average holds several tokens."""
_TEXT = frozenset({"role", "content"})
_THOUGHTS = frozenset({"reasoning", "reasoning_content", "reasoning_details"})


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a reader was given of an answer."""

    head: Mapping[str, Any]
    """The fields that every chunk repeats: id, object, created, model …"""
    text: str
    pieces: int
    whole: bool
    """The text is all of it: one choice, no tool call, no log-probabilities, not ended."""

    @classmethod
    def read(cls, kept: Sequence[bytes]) -> Delivered:
        """From the bytes that were handed on."""
        head: dict[str, Any] = {}
        texts: list[str] = []
        whole = True
        decoder = SseDecoder()
        for part in kept:
            for event in decoder.feed(part):
                if not event.payload or event.done:
                    continue
                data = event.data
                if not head:
                    head = {k: v for k, v in data.items() if k not in ("choices", "usage")}
                for choice in data.get("choices") or ():
                    text = _text_of(choice)
                    if text is None:
                        whole = False
                    elif text:
                        texts.append(text)
        return cls(head, "".join(texts), len(texts), whole and bool(texts))

    @property
    def tokens(self) -> int:
        """About how many: one a piece, unless the pieces are too long for that."""
        if self.pieces and len(self.text) / self.pieces > _MANY_CHARACTERS:
            return max(self.pieces, len(self.text) // _CHARACTERS_A_TOKEN)
        return self.pieces


def _text_of(choice: Any) -> str | None:
    """The text that a chunk's choice adds; ``None`` where it is or has something else."""
    if not isinstance(choice, dict) or choice.get("index") not in (0, None):
        return None
    if choice.get("finish_reason") is not None or choice.get("logprobs"):
        return None
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text")
        return text if isinstance(text, str) else ("" if text is None else None)
    if not isinstance(delta, dict):
        return None
    other = {k for k, v in delta.items() if v and k not in _TEXT}
    text = delta.get("content")
    if other - _THOUGHTS or not (text is None or isinstance(text, str)):
        return None
    return text or ""


def continuable(path: str, body: Mapping[str, Any]) -> TextRequest | None:
    """The request, where its answer is text that can be taken up in the middle."""
    for name in _NOT_TEXT:
        if body.get(name) not in (None, False, [], {}, ""):
            return None
    if body.get("n") not in (None, 1):
        return None
    if body.get("response_format") not in (None, {"type": "text"}):
        return None
    if body.get("modalities") not in (None, ["text"]):
        return None
    request = TextRequest.read(path, body)
    messages = body.get("messages")
    if path == CHAT:
        last = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last, dict) or last.get("role") == "assistant":
            return None
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    stop = body.get("stop")
    return replace(
        request,
        max_tokens=limit if isinstance(limit, int) else None,
        stop=(stop,) if isinstance(stop, str) else tuple(s for s in stop or () if s),
        messages=tuple(messages) if isinstance(messages, list) else None,
    )


async def resumed(
    error: ProviderError,
    kept: Sequence[bytes],
    path: str,
    body: Mapping[str, Any],
    target: Target,
    standby: Standby,
    tally: PlainTally,
    deadline: Deadline,
) -> AsyncGenerator[bytes] | None:
    """The rest of the answer as chunks like those before, up to ``[DONE]``; ``None``: it can't be
    gone on with. The books are the tally's, settled before ``[DONE]``."""
    request = continuable(path, body)
    try:
        delivered = Delivered.read(kept)
    except BadAnswer:
        return None
    if request is None or not delivered.whole:
        return None
    answer = Answer(max_tokens=request.max_tokens, stop=request.stop)
    answer.push_text(delivered.text, tokens=delivered.tokens, limited=False)
    book = Book(deadline.clock)
    going = Continuing(
        request=request,
        target=target,
        prompt=templates.unrendered(request),
        answer=answer,
        book=book,
        deadline=deadline,
        standby=standby,
    )
    if answer.finish is not None or not (going.full or await going.moves(error)):
        tally.notes += going.notes
        return None
    return _rest(going, delivered, tally)


async def _rest(
    going: Continuing, delivered: Delivered, tally: PlainTally
) -> AsyncGenerator[bytes]:
    request, answer, clock = going.request, going.answer, going.deadline.clock
    encoder = Encoder.after(
        delivered.head, chat=request.path == CHAT, include_usage=request.include_usage
    )
    begun_with = answer.tokens
    known = len(answer.held)  # The reader has it, though it may be the beginning of a stop string.
    noted = 0
    try:
        async with aclosing(run_plain(going)) as events:
            async for event in events:
                if not isinstance(event, Commit):
                    continue  # A plain answer has no rounds.
                delta = going.apply(event)
                tally.target, tally.exactness = going.target.ref, going.exactness
                tally.exactness_reason = going.exactness_reason
                tally.notes += going.notes[noted:]
                noted = len(going.notes)
                text, known = delta.text[known:], max(known - len(delta.text), 0)
                if text or delta.extra:
                    tally.content(clock(), bool(text))
                    yield encoder.text(text, delta.extra)
                if answer.finish is not None:
                    break
    finally:
        tally.attempts += going.book.attempts
        tally.notes += going.notes[noted:]
    tally.finish_reason = answer.finish
    tally.usage = _as_plain(going, begun_with)
    yield encoder.finish(answer.finish or "stop")
    tail = encoder.usage(tally.usage)
    if tail:
        yield tail
    tally.end("ok", complete=True)
    yield wire.DONE


def _as_plain(going: Continuing, begun_with: int) -> Usage:
    """What a plain call would have shown: the prompt without the text that was taken up."""
    for attempt in going.book.attempts:
        if attempt.purpose == "resume" and attempt.usage.prompt_tokens is not None:
            prompt = attempt.usage.prompt_tokens - begun_with
            return Usage(max(prompt, 0), going.answer.tokens)
    return Usage(None, going.answer.tokens)

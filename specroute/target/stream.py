"""A target's stream as pieces of answer: text, the ids where shown, the finish, the usage.

Knows the two wire shapes (chat deltas and legacy completions chunks). Knows no lanes and no engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specroute.book import Book
from specroute.http import wire
from specroute.types import Usage

if TYPE_CHECKING:
    from specroute.http.client import HttpClient
    from specroute.http.deadline import Deadline

_PLAIN_FIELDS = frozenset({"role", "content"})


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk added. ``tokens`` is the number of tokens it shows, ``None`` if it shows none
    by themselves; ``texts`` are those tokens' own strings (boundaries), where shown."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    texts: tuple[str, ...] | None = None
    finish: str | None = None
    extra: Mapping[str, Any] | None = None
    """Other fields of a chat delta (reasoning, refusal …), to be handed on untouched."""
    usage: Usage | None = None
    """The server's own count for the whole stream, in its last piece where the server gives it."""
    again: int = 0
    """Completion tokens in ``usage`` that only said what had been said."""

    @property
    def tokens(self) -> int | None:
        return len(self.texts) if self.texts is not None else None


async def pieces(
    http: HttpClient,
    path: str,
    payload: Mapping[str, Any],
    *,
    target: str,
    purpose: str,
    book: Book,
    deadline: Deadline,
    prompt_tokens: int | None = None,
    beyond: int | None = None,
) -> AsyncGenerator[Piece]:
    """Stream one call. The book's line gets the server's usage, or ``prompt_tokens`` and a count of
    what was received (marked estimated) when the stream is ended early. ``beyond``: tokens of the
    answer that the prompt goes on with, where ``prompt_tokens`` are not known. Raises the errors of
    ``specroute.errors``."""
    with book.attempt(target, purpose) as entry:
        received = 0
        shown: Usage | None = None
        try:
            stream = await http.post_stream(path, payload, deadline, purpose=purpose)
            entry.request_id = stream.request_id
            async with stream:
                async for event in stream:
                    data = event.data
                    piece = _read(data)
                    if isinstance(data.get("usage"), dict):
                        shown = stream.usage = Usage.from_wire(data["usage"])
                        piece = replace(piece or Piece(), usage=shown)
                    if piece is None:
                        continue
                    received += piece.tokens if piece.tokens is not None else bool(piece.text)
                    if shown is None:
                        stream.usage = Usage(prompt_tokens, received, None)
                    yield piece
        finally:
            entry.estimated = shown is None
            entry.usage = shown if shown is not None else Usage(prompt_tokens, received, None)
            entry.beyond = beyond


def _read(data: Mapping[str, Any]) -> Piece | None:
    choices = data.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return None
    choice = choices[0]
    finish = wire.finish_reason(choice)
    shown = choice.get("logprobs")
    shown = shown if isinstance(shown, dict) else {}
    extra: dict[str, Any] | None = None
    if "delta" in choice:
        delta = choice["delta"] if isinstance(choice["delta"], dict) else {}
        text = delta.get("content") or ""
        rest = {k: v for k, v in delta.items() if k not in _PLAIN_FIELDS and v is not None}
        extra = rest or None
        content = shown.get("content")
        tokens = (
            [t.get("token", "") for t in content if isinstance(t, dict)]
            if isinstance(content, list)
            else None
        )
    else:
        text = choice.get("text") or ""
        tokens = shown.get("tokens") if isinstance(shown.get("tokens"), list) else None
    beside = choice.get("token_ids")
    if not (text or finish or extra or tokens or beside):
        return None
    ids = _ids(tokens) if tokens is not None else None
    if not ids and isinstance(beside, list) and all(isinstance(token, int) for token in beside):
        ids = tuple(beside)
    return Piece(
        text if isinstance(text, str) else "",
        ids,
        tuple(str(token) for token in tokens) if tokens is not None else None,
        finish,
        extra,
    )


def _ids(tokens: list[Any]) -> tuple[int, ...] | None:
    ids = []
    for token in tokens:
        head, _, number = str(token).partition("token_id:")
        if head or not number.isdigit():
            return None
        ids.append(int(number))
    return tuple(ids)

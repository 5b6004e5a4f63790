"""A plain answer as it was handed on, read once it is over: its text, what it shows of its tokens.

Nothing is decoded while the answer is under way. Knows the shapes of chat and completions answers,
streamed and whole; deliberately nothing of what is made of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 2_000_000
"""Longer answers are let go of."""


@dataclass(frozen=True, slots=True)
class Heard:
    """``logprobs``: each token's text and its log-probability, where the caller had asked."""

    text: str
    logprobs: tuple[tuple[str, float], ...] | None = None


class Overheard:
    """Keeps the pieces of one answer; :meth:`read` once it is complete. ``beat`` is told how many
    pieces of content came, as they come; not ``keep``: that is all."""

    __slots__ = ("_chunks", "_keep", "_size", "_whole", "beat")

    def __init__(self, beat: Callable[[int], None] | None = None, *, keep: bool = True) -> None:
        self.beat = beat
        self._keep = keep
        self._chunks: list[bytes] = []
        self._size = 0
        self._whole: Mapping[str, Any] | None = None

    def chunk(self, piece: bytes) -> None:
        """Bytes of a stream that were handed on: whole events."""
        if self.beat is not None:
            self.beat(piece.count(b"\n\n"))
        if not self._keep:
            return
        self._size += len(piece)
        if self._size <= MOST_BYTES:
            self._chunks.append(piece)
        else:
            self._chunks.clear()

    def whole(self, data: Mapping[str, Any]) -> None:
        """An answer that came at once."""
        if self._keep:
            self._whole = data

    def read(self) -> Heard | None:
        """The first choice's text; ``None`` where there is none, or it was too long, or there was
        more beside it (tool calls, reasoning, a refusal)."""
        answers = [self._whole] if self._whole is not None else _events(b"".join(self._chunks))
        texts: list[str] = []
        shown: list[tuple[str, float]] = []
        for data in answers:
            for choice in data.get("choices") or ():
                if choice.get("index") not in (0, None):
                    continue
                said = choice.get("delta") or choice.get("message") or {"content": choice["text"]}
                if any(said.get(k) for k in said if k not in ("role", "content")):
                    return None
                texts.append(said.get("content") or "")
                shown += _logprobs(choice.get("logprobs"))
        text = "".join(texts)
        if not text:
            return None
        joined = "".join(token for token, _ in shown)
        return Heard(text, tuple(shown) if shown and joined == text else None)


def _events(stream: bytes) -> Iterator[Mapping[str, Any]]:
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            data = json.loads(line[6:])
            if isinstance(data, dict):
                yield data


def _logprobs(shown: Any) -> list[tuple[str, float]]:
    if not isinstance(shown, dict):
        return []
    content = shown.get("content")
    if isinstance(content, list):
        return [(str(t.get("token")), float(t.get("logprob") or 0.0)) for t in content]
    tokens, values = shown.get("tokens"), shown.get("token_logprobs")
    if isinstance(tokens, list) and isinstance(values, list):
        return [(str(t), float(v or 0.0)) for t, v in zip(tokens, values, strict=False)]
    return []

"""The answer under construction: commits in, text deltas out, exactly as a plain call would end.

The only place that knows stop strings, ``max_tokens``, end tokens and the token count. Pure. Knows
no target and no method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specroute.alignment import StopScanner, TextStream
from specroute.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to hand to the caller now (may be empty), and the finish reason once there is one."""

    text: str = ""
    finish: str | None = None
    extra: Mapping[str, Any] | None = None


class Answer:
    """One answer. ``vocabulary`` is needed for commits by id only."""

    def __init__(
        self, *, max_tokens: int | None, stop: tuple[str, ...], vocabulary: Vocabulary | None = None
    ) -> None:
        self.max_tokens = max_tokens
        self.ids: list[int] | None = []
        """The committed ids (end token excluded); ``None`` once a commit came without ids."""
        self.text = ""
        """All committed text, what is held back for a stop string included."""
        self.tokens = 0
        """Completion tokens as the server would count them, the end token included."""
        self.finish: str | None = None
        self.ended_by_token = False
        """Whether an end token was committed; it is among ``tokens``."""
        self._vocabulary = vocabulary
        self._detokenizer: TextStream | None = None
        self._stops = StopScanner(stop)

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary of the ids to come."""
        self._vocabulary = vocabulary

    @property
    def remaining(self) -> int | None:
        """Tokens left of ``max_tokens``; ``None`` without a limit."""
        return None if self.max_tokens is None else self.max_tokens - self.tokens

    @property
    def held(self) -> str:
        """Committed text that is held back: it may be the beginning of a stop string."""
        return self._stops.held

    @property
    def inside_character(self) -> bool:
        """Whether the committed ids end inside a character, whose bytes no text shows yet."""
        return self._detokenizer is not None and self._detokenizer.holding

    def drop_unfinished(self) -> None:
        """Take back the last ids where they end inside a character: nothing of it was shown. Where
        the first of them also ends text that was, the text alone is kept."""
        if self._detokenizer is None:
            return
        count, shown = self._detokenizer.drop()
        self._detokenizer = None
        if count:
            self.tokens -= count
            self.ids = self.ids[:-count] if self.ids is not None and not shown else None

    def push_ids(self, ids: tuple[int, ...], *, finish: str | None = None) -> Delta:
        """Append tokens one by one until the answer ends; what comes after is dropped."""
        if self._vocabulary is None:
            raise RuntimeError("ids were committed before their vocabulary was known")
        if self._detokenizer is None:
            self._detokenizer = TextStream(self._vocabulary.decode)
        out = ""
        for token in ids:
            self.tokens += 1
            if token in self._vocabulary.eos_ids:
                self.ended_by_token = True
                return self._end(out, "stop")
            if self.ids is not None:
                self.ids.append(token)
            piece = self._detokenizer.push((token,))
            self.text += piece
            out += self._stops.push(piece)
            if self._stops.hit is not None:
                self.finish = "stop"
                return Delta(out, "stop")
            if self.max_tokens is not None and self.tokens >= self.max_tokens:
                return self._end(out, "length")
        return self._end(out, finish) if finish else Delta(out)

    def push_text(
        self,
        text: str,
        *,
        tokens: int,
        finish: str | None = None,
        extra: Mapping[str, Any] | None = None,
        limited: bool = True,
    ) -> Delta:
        """Append text whose ids are not known. ``finish`` is the server's own reason. ``limited``:
        ``max_tokens`` is kept here; else the server keeps it and ``tokens`` may be a guess."""
        tail = self._detokenizer.flush() if self._detokenizer is not None else ""
        self._detokenizer = None
        self.ids = None if text or self.ids is None else self.ids
        self.tokens += tokens
        text = tail + text
        self.text += text
        released = self._stops.push(text)
        if self._stops.hit is not None:
            self.finish = "stop"
            return Delta(released, "stop", extra)
        if finish:
            return self._end(released, finish, extra)
        if limited and tokens and self.max_tokens is not None and self.tokens >= self.max_tokens:
            return self._end(released, "length", extra)
        return Delta(released, None, extra)

    def _end(self, out: str, finish: str, extra: Mapping[str, Any] | None = None) -> Delta:
        if self._detokenizer is not None:
            tail = self._detokenizer.flush()
            self.text += tail
            out += self._stops.push(tail)
            if self._stops.hit is not None:
                finish = "stop"
        self.finish = finish
        return Delta(out + self._stops.finish(), finish, extra)

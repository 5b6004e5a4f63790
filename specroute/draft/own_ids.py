"""A growing text in a model's own ids, encoded anew only near its end.

Knows one vocabulary. The ids are those of the whole text wherever tokenizers work left to right on
words, and always ids that say the text; they are a model's context, so a rare other cut at a seam
costs the draft nothing that matters.
"""

from __future__ import annotations

from specroute.vocabulary import Vocabulary

WINDOW = 64
"""Ids at the end that are encoded again."""
SYNC = 16
"""Ids at the window's start that must come out as they were."""


class OwnIds:
    """The ids of a text that only grows (another text is encoded whole)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        first = vocabulary.tokens[vocabulary.encode("a")[0]]
        self.opens = bool(first and first.startswith(b" "))
        """Whether the tokenizer puts a space before a text (SentencePiece)."""
        self._text = ""
        self._ids: tuple[int, ...] = ()

    def of(self, text: str) -> tuple[int, ...]:
        """The ids of ``text``."""
        if text != self._text:
            self._ids = self._grown(text) or self._vocabulary.encode(text)
            self._text = text
        return self._ids

    def _grown(self, text: str) -> tuple[int, ...] | None:
        """By encoding from the window on; ``None`` where that doesn't fit what came before."""
        if len(self._ids) < 2 * WINDOW or not text.startswith(self._text):
            return None
        tokens, window = self._vocabulary.tokens, self._ids[-WINDOW:]
        while self.opens and window and not (tokens[window[0]] or b"").startswith(b" "):
            window = window[1:]
        try:
            tail = b"".join(tokens[i] or b"\xff" for i in window).decode()
        except UnicodeDecodeError:  # the window starts inside a character, or has no bytes
            return None
        tail = tail[1:] if self.opens else tail
        if not self._text.endswith(tail):
            return None
        again = self._vocabulary.encode(text[len(self._text) - len(tail) :])
        if len(window) < SYNC or again[:SYNC] != window[:SYNC]:
            return None
        return self._ids[: len(self._ids) - len(window)] + again

"""Where text may be cut: whole characters, stop strings, token and lane boundaries.

Knows characters and how ids decode (a function that is passed in). Deliberately knows nothing of
particular tokenizers, of methods or of what is committed. Nothing here splits a character, and
nothing is lost or doubled: every piece handed on, joined, is the input up to what is still held.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence

UNKNOWN = "\ufffd"
"""What decoders put for bytes that are no character (yet)."""
_UNFINISHED = 3
"""Bytes, and so at most replacement characters, of an unfinished UTF-8 character."""


class TextStream:
    """Text from ids as they come, whole characters only.

    ``decode`` turns ids into text and an unfinished character into U+FFFD. A tail of up to three
    U+FFFD is held back until later ids finish the character or :meth:`flush` ends the stream.
    Only a window of recent ids is decoded each time, starting at least one push back, so that
    decoders that treat the first token differently (a stripped leading space) do no harm.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        """The window: ids whose text is finished, then those of the last clean push on."""
        self._clean = 0
        """Leading ids of the window that end in whole characters and were handed on."""
        self._sent = 0
        """Characters of the window's text that were handed on."""

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids; return the text that became certain."""
        before = len(self._ids)
        self._ids.extend(ids)
        if len(self._ids) == before:
            return ""
        text = self._decode(self._ids)
        whole = len(text)
        while whole > self._sent and len(text) - whole < _UNFINISHED and text[whole - 1] == UNKNOWN:
            whole -= 1
        out = text[self._sent : whole]
        self._sent = max(self._sent, whole)
        if whole == len(text) and whole:
            del self._ids[: self._clean]
            self._clean = len(self._ids)
            self._sent = len(self._decode(self._ids))
        return out

    @property
    def holding(self) -> bool:
        """Whether an unfinished character is held back."""
        return self._clean < len(self._ids) and len(self._decode(self._ids)) > self._sent

    def drop(self) -> tuple[int, bool]:
        """End the stream without what is held: how many of the last ids that is, and whether the
        first of them had begun with text that was handed on."""
        if not self.holding:
            return 0, False
        count = len(self._ids) - self._clean
        shown = self._sent > len(self._decode(self._ids[: self._clean]))
        self._ids, self._clean, self._sent = [], 0, 0
        return count, shown

    def flush(self) -> str:
        """End the stream: whatever is held, as U+FFFD."""
        text = self._decode(self._ids)[self._sent :] if self._ids else ""
        self._ids, self._clean, self._sent = [], 0, 0
        return text


class StopScanner:
    """Cuts a text that comes in pieces at its first stop string, wherever the pieces are cut.

    The first stop string to be *completed* wins (as in a server that looks after every token);
    of those completed by the same character, the one that starts first. The longest tail that
    could still become a stop string is held back. The stop string itself is not handed on.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit: str | None = None
        """The stop string that was found; from then on nothing more is handed on."""

    def push(self, text: str) -> str:
        """Take more text; return what can't be part of a stop string any more."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(i + len(stop), i, stop) for stop in self._stops if (i := text.find(stop)) >= 0]
        if found:
            _, start, self.hit = min(found)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @property
    def held(self) -> str:
        """What is held back."""
        return self._held

    def finish(self) -> str:
        """The text has ended: release what is held."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ``text`` ends with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def common_text(a: str, b: str) -> int:
    """Characters that ``a`` and ``b`` share at their start."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def matched_pieces(pieces: Sequence[str], text: str) -> tuple[int, int]:
    """How far ``text`` confirms a draft, at the draft's token boundaries.

    ``pieces`` are the texts of its tokens. Returns (tokens, characters) of the longest run of
    whole pieces that ``text`` starts with. Pieces without text count only with a later one that
    has some: alone they prove nothing.
    """
    tokens = length = 0
    for i, piece in enumerate(pieces, 1):
        if not text.startswith(piece, length):
            break
        length += len(piece)
        if piece:
            tokens = i
    return tokens, length


def split_trailing_space(text: str) -> tuple[str, str]:
    """(what may be sent as a prefill, trailing whitespace to keep for the next round).

    Several APIs strip trailing whitespace from a prefill, and the model would then write it again.
    """
    sendable = text.rstrip()
    return sendable, text[len(sendable) :]


def cut_points(text: str) -> list[int]:
    """Where a draft may be cut for a prefix lane while token boundaries are invisible.

    Before a single space between two other characters: tokenizers join a space with the word that
    follows, so a token of the target's ends there. A mark that combines with the space is no
    boundary. Chinese and the like have no such points.
    """
    return [
        i
        for i in range(1, len(text) - 1)
        if text[i] == " "
        and not text[i - 1].isspace()
        and not text[i + 1].isspace()
        and not unicodedata.category(text[i + 1]).startswith("M")
    ]

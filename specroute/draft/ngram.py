"""Prompt lookup as the drafter: what followed the last time these tokens were seen.

Apoorv Saxena's prompt lookup decoding, as in transformers and vLLM's n-gram proposer: the longest
suffix of the sequence that occurred before, its most recent occurrence, and what came after it.
Free, no model. Before the answer has begun there is no suffix to look up: then it is the passage
that the prompt is about (``passage``), if there is one. Knows ids where the target's are known,
pieces of text otherwise; nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from time import perf_counter
from typing import Generic, TypeVar

from specroute.alignment import TextStream
from specroute.draft.base import Committed, Prompt, Proposal, common_prefix
from specroute.draft.passage import passage
from specroute.vocabulary import Vocabulary

T = TypeVar("T", bound=Hashable)

MAX_N, MIN_N = 5, 2
LEAD_IN = 8
"""Committed ids decoded before the draft's, so that a character may straddle the two."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf" ?[^\W{_CJK}]+| ?[^\w\s]|[{_CJK}]|\s+")


def split_pieces(text: str) -> list[str]:
    """Words and punctuation with the space before them, single CJK characters, runs of space.

    About a token each; joined they are the text.
    """
    return _PIECE.findall(text)


class NgramIndex(Generic[T]):
    """A growing sequence, and where each of its n-grams was last followed by something.

    Appending an item costs O(max_n), looking up O(max_n), whatever the length.
    """

    def __init__(self, max_n: int = MAX_N, min_n: int = MIN_N) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self.items: list[T] = []
        self._after: dict[tuple[T, ...], int] = {}
        self._marked: int | None = None
        self._undo: list[list[tuple[tuple[T, ...], int | None]]] = []

    def extend(self, items: Iterable[T]) -> None:
        """Append items."""
        for item in items:
            end = len(self.items)
            keys = [tuple(self.items[end - n :]) for n in self._sizes if n <= end]
            if self._marked is not None:
                self._undo.append([(key, self._after.get(key)) for key in keys])
            for key in keys:
                self._after[key] = end
            self.items.append(item)

    def mark(self) -> None:
        """What is there now stays; what comes after may be taken back."""
        self._marked, self._undo = len(self.items), []

    def truncate(self, size: int) -> None:
        """Take back the items behind the first ``size``, but none of before the mark."""
        while len(self.items) > max(size, self._marked or 0) and self._undo:
            self.items.pop()
            for key, before in self._undo.pop():
                if before is None:
                    del self._after[key]
                else:
                    self._after[key] = before

    def find(self, suffix: Sequence[T] = ()) -> Iterable[int]:
        """Where the sequence, with ``suffix`` after it, was last continued: longest match first."""
        for n in self._sizes:
            own = n - len(suffix)
            if own < 0 or own > len(self.items):
                continue
            key = (*self.items[len(self.items) - own :], *suffix)
            if (position := self._after.get(key)) is not None:
                yield position

    def take(self, position: int, k: int, suffix: Sequence[T] = ()) -> list[T]:
        """k items from ``position``; where sequence and suffix end, on with what was taken."""
        out = self.items[position : position + k]
        end = len(self.items) + len(suffix)
        while len(out) < k:
            at = position + len(out)
            out.append(suffix[at - len(self.items)] if at < end else out[at - end])
        return out


class NgramDrafter:
    """Drafts by prompt lookup over the prompt and the answer so far."""

    free = True
    """Asking it takes microseconds and no money: it may be asked at every token."""
    vocabulary: Vocabulary | None = None

    def __init__(self, name: str = "ngram", max_n: int = MAX_N, min_n: int = MIN_N) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"min_n={min_n!r}, max_n={max_n!r}: expected 1 <= min_n <= max_n")
        self.name = name
        self._range = (max_n, min_n)

    async def load(self) -> None:
        """Nothing to load."""

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> NgramSession:
        return NgramSession(prompt, target_vocabulary, *self._range)

    async def aclose(self) -> None:
        """Nothing to free."""


class NgramSession:
    """One request's index; what is newly committed is added at each proposal.

    What it is asked to go on from may be taken back later (a draft that didn't stand). Where that
    is the last proposal's own end, it goes on in the same place: one found again by its last few
    items may be another.
    """

    def __init__(
        self, prompt: Prompt, vocabulary: Vocabulary | None, max_n: int, min_n: int
    ) -> None:
        self._prompt, self._vocabulary = prompt, vocabulary
        self._ids: NgramIndex[int] = NgramIndex(max_n, min_n)
        self._ids.extend(prompt.ids or ())
        self._ids.mark()
        self._id_place: tuple[tuple[int, ...], Sequence[int], int] | None = None
        """(the answer with the last proposal, where that was read, how far)."""
        self._pieces: NgramIndex[str] | None = None
        self._range = (max_n, min_n)
        self._seen_text = ""
        self._tail = ""
        """The last piece, which may still grow; not yet in the index."""
        self._place: tuple[str, Sequence[str], int] | None = None
        self._passage = passage(prompt)

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        """What followed last time; ``temperature`` changes nothing, q is a point mass."""
        began = perf_counter()
        if self._prompt.ids is not None and committed.ids is not None:
            found = self._by_ids(tuple(committed.ids), k)
            text, ids, ended = self._readable(committed.ids, found)
            return Proposal(text, tuple(ids), None, ended, perf_counter() - began)
        return Proposal(self._by_text(committed.text, k), seconds=perf_counter() - began)

    async def aclose(self) -> None:
        self._ids, self._pieces = NgramIndex(), None

    # --- by ids -----------------------------------------------------------------------------

    def _by_ids(self, committed: tuple[int, ...], k: int) -> list[int]:
        index, start = self._ids, len(self._prompt.ids or ())
        seen = len(index.items) - start
        if tuple(index.items[start:]) != committed[:seen]:
            index.truncate(start + common_prefix(index.items[start:], committed))
        index.extend(committed[len(index.items) - start :])
        place = self._id_place
        if place is not None and place[0] == committed and place[2] < len(place[1]):
            source, at = place[1], place[2]
            taken = list(source[at : at + k])
        else:
            source, at, taken = self._found_ids(committed, k)
        self._id_place = ((*committed, *taken), source, at + k) if taken else None
        return taken

    def _found_ids(
        self, committed: tuple[int, ...], k: int
    ) -> tuple[Sequence[int], int, list[int]]:
        if not committed and self._vocabulary is not None and self._passage:
            source = self._vocabulary.encode(self._passage)
            return source, 0, list(source[:k])
        for position in self._ids.find():
            return self._ids.items, position, self._ids.take(position, k)
        return (), 0, []

    def _readable(self, committed: Sequence[int], ids: list[int]) -> tuple[str, list[int], bool]:
        """The draft's text; it ends with an end token, or before any other special one."""
        if self._vocabulary is None:
            return "", ids, False
        ended = False
        for i, token in enumerate(ids):
            if token in self._vocabulary.special_ids:
                ended = token in self._vocabulary.eos_ids
                ids = ids[: i + ended]
                break
        stream = TextStream(self._vocabulary.decode)
        stream.push(committed[-LEAD_IN:])
        return stream.push(ids), ids, ended

    # --- by text ----------------------------------------------------------------------------

    def _by_text(self, committed: str, k: int) -> str:
        place = self._place
        if place is not None and place[0] == committed and place[2] < len(place[1]):
            source, at = place[1], place[2]
            text = "".join(source[at : at + k])
        else:
            source, at, text = self._found_text(committed, k)
        self._place = (committed + text, source, at + k) if text else None
        return text

    def _found_text(self, committed: str, k: int) -> tuple[Sequence[str], int, str]:
        if not committed and self._passage:
            source = split_pieces(self._passage)
            return source, 0, "".join(source[:k])
        index = self._read(committed)
        if self._tail:
            for position in index.find([self._tail]):
                return index.items, position, "".join(index.take(position, k, [self._tail]))
        for position in index.find():  # the last piece may be the beginning of one seen before
            first, *rest = index.take(position, k)
            if first.startswith(self._tail):
                return index.items, position, "".join((first[len(self._tail) :], *rest))
        return (), 0, ""

    def _read(self, committed: str) -> NgramIndex[str]:
        """The index with what is committed; only what is new is cut into pieces."""
        index = self._pieces
        if index is None:
            index = self._pieces = NgramIndex(*self._range)
            index.extend(split_pieces(_prompt_text(self._prompt)))
            index.mark()
        if not committed.startswith(self._seen_text):
            index.truncate(0)
            self._seen_text = self._tail = ""
        new = committed[len(self._seen_text) :]
        *closed, self._tail = split_pieces(self._tail + new) or [""]
        self._seen_text = committed
        index.extend(closed)
        return index


def _prompt_text(prompt: Prompt) -> str:
    if prompt.text is not None:
        return prompt.text
    contents = (message.get("content") for message in prompt.messages or ())
    return "\n".join(c for c in contents if isinstance(c, str))

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
from specroute.draft.base import Committed, Prompt, Proposal
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

    def extend(self, items: Iterable[T]) -> None:
        """Append items."""
        for item in items:
            end = len(self.items)
            for n in self._sizes:
                if n <= end:
                    self._after[tuple(self.items[end - n :])] = end
            self.items.append(item)

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
    """One request's index; what is newly committed is added at each proposal."""

    def __init__(
        self, prompt: Prompt, vocabulary: Vocabulary | None, max_n: int, min_n: int
    ) -> None:
        self._prompt, self._vocabulary = prompt, vocabulary
        self._ids: NgramIndex[int] = NgramIndex(max_n, min_n)
        self._ids.extend(prompt.ids or ())
        self._seen_ids = 0
        self._pieces: NgramIndex[str] | None = None
        self._range = (max_n, min_n)
        self._seen_text = 0
        self._tail = ""
        """The last piece, which may still grow; not yet in the index."""
        self._passage = passage(prompt)

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        """What followed last time; ``temperature`` changes nothing, q is a point mass."""
        began = perf_counter()
        if self._prompt.ids is not None and committed.ids is not None:
            ids = self._by_ids(committed.ids, k)
            text, ids, ended = self._readable(committed.ids, ids)
            return Proposal(text, tuple(ids), None, ended, perf_counter() - began)
        return Proposal(self._by_text(committed.text, k), seconds=perf_counter() - began)

    async def aclose(self) -> None:
        self._ids, self._pieces = NgramIndex(), None

    def _by_ids(self, committed: Sequence[int], k: int) -> list[int]:
        self._ids.extend(committed[self._seen_ids :])
        self._seen_ids = len(committed)
        if not committed and self._vocabulary is not None and self._passage:
            # A text's tokens, cut where they are enough: the last one may not be as in the whole.
            return list(self._vocabulary.encode(self._passage[: 8 * k]))[:k]
        for position in self._ids.find():
            return self._ids.take(position, k)
        return []

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

    def _by_text(self, committed: str, k: int) -> str:
        if self._pieces is None:
            self._pieces = NgramIndex(*self._range)
            self._pieces.extend(split_pieces(_prompt_text(self._prompt)))
        if not committed and self._passage:
            return "".join(split_pieces(self._passage[: 16 * k])[:k])
        index = self._pieces
        *closed, self._tail = split_pieces(self._tail + committed[self._seen_text :]) or [""]
        self._seen_text = len(committed)
        index.extend(closed)
        if self._tail:
            for position in index.find([self._tail]):
                return "".join(index.take(position, k, [self._tail]))
        for position in index.find():  # the last piece may be the beginning of one seen before
            first, *rest = index.take(position, k)
            if first.startswith(self._tail):
                return "".join((first[len(self._tail) :], *rest))
        return ""


def _prompt_text(prompt: Prompt) -> str:
    if prompt.text is not None:
        return prompt.text
    contents = (message.get("content") for message in prompt.messages or ())
    return "\n".join(c for c in contents if isinstance(c, str))

"""A tokenizer seen from outside: text to ids, ids to text, a chat template, the end tokens.

Knows how to load one through transformers (lazily: nothing heavy is imported until then) and how
to tell whether two are the same. Knows nothing of servers or drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Vocabulary(Protocol):
    """One tokenizer's ids. Two with equal ``fingerprint`` give the same ids for every text."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence (tokenizer and generation config)."""
        ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ``text``, no special token added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens give no text; an unfinished UTF-8 character at the end
        comes out as U+FFFD."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a chat prompt, generation prompt included. ``ValueError`` without a template."""
        ...

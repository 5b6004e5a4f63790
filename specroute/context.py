"""What is to be continued: the prompt and the answer so far. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is going to answer, in whatever forms are known.

    ``ids`` are in the *target's* vocabulary; a drafter uses them only if it speaks that
    vocabulary, else it renders ``messages`` with its own template or continues ``text``.
    """

    messages: tuple[Mapping[str, Any], ...] | None
    text: str | None
    ids: tuple[int, ...] | None = None

    def has(self, form: Literal["ids", "text", "chat"]) -> bool:
        """Whether it is known in that form."""
        return {"ids": self.ids, "text": self.text, "chat": self.messages}[form] is not None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer so far: final, never taken back. ``ids`` (the target's) where they are known."""

    text: str = ""
    ids: tuple[int, ...] | None = None

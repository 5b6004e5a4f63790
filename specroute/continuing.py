"""An answer that goes on: from its start or from what is committed, at one target after another.

Knows what has been committed, at which target it goes on and what is guaranteed of it. Knows no
drafts, no rounds and no policy; who else could go on with it, a :class:`Standby` knows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from specroute.answer import Answer, Delta
from specroute.book import Book
from specroute.context import Committed, Prompt
from specroute.errors import ProviderError
from specroute.events import Commit
from specroute.http.deadline import Deadline
from specroute.itinerary import substitute
from specroute.request import TextRequest
from specroute.target.stream import Piece
from specroute.target.target import Target
from specroute.types import Exactness

_THOUGHTS = ("reasoning", "reasoning_content", "reasoning_details")
"""Deltas of a model that thinks first: it does so once."""


class Standby(Protocol):
    """Who else can go on with an answer."""

    async def after(self, error: ProviderError, going: Continuing) -> tuple[Target, Prompt] | None:
        """The target that takes ``going`` up after ``error``, and the prompt as it sees it;
        ``None``: nobody can."""
        ...


@dataclass(slots=True, kw_only=True)
class Continuing:
    """One answer under way."""

    request: TextRequest
    target: Target
    prompt: Prompt
    answer: Answer
    book: Book
    deadline: Deadline
    standby: Standby | None = None
    notes: list[str] = field(default_factory=list)
    exactness: Exactness = Exactness.EXACT
    exactness_reason: str | None = None
    resumed: bool = False
    """Whether it was taken up after a fault."""
    text_only: bool = True
    """Nothing but text was committed (and thoughts before it): its text tells all of it."""

    @property
    def committed(self) -> Committed:
        """The answer so far, ids where every commit had them."""
        ids = self.answer.ids
        return Committed(self.answer.text, tuple(ids) if ids is not None else None)

    @property
    def full(self) -> bool:
        """``max_tokens`` are used up: only the end is missing."""
        return self.answer.remaining is not None and self.answer.remaining <= 0

    @property
    def by_ids(self) -> bool:
        """A plain stream goes on from the answer's ids, not from its text."""
        return self.target.goes_on_by_ids(self.request, self.prompt)

    def apply(self, commit: Commit) -> Delta:
        """Make a commit part of the answer; the text to hand on now, and the end if this is it."""
        if self.answer.finish is not None:
            return Delta()
        if commit.ids is not None:
            return self.answer.push_ids(commit.ids, finish=commit.finish)
        extra = commit.extra
        if extra is not None:
            if self.resumed:
                extra = {k: v for k, v in extra.items() if k not in _THOUGHTS} or None
            self.text_only = self.text_only and not set(extra or ()).difference(_THOUGHTS)
        return self.answer.push_text(
            commit.text,
            tokens=commit.tokens,
            finish=commit.finish,
            extra=extra,
            limited=commit.limited,
        )

    def loosen(self, label: Exactness, reason: str) -> None:
        """Lower the guarantee; it never rises again."""
        if label.rank > self.exactness.rank:
            self.exactness = label
            self.exactness_reason = reason

    def stream(
        self, purpose: str, *, show_tokens: bool = False, predicted: str = ""
    ) -> AsyncGenerator[Piece]:
        """The target's own answer from the end of what is committed."""
        return self.target.stream(
            self.request,
            self.prompt,
            self.committed,
            used=self.answer.tokens,
            purpose=purpose,
            book=self.book,
            deadline=self.deadline.resumed() if self.answer.tokens else self.deadline,
            show_tokens=show_tokens,
            predicted=predicted,
        )

    async def moves(self, error: ProviderError) -> bool:
        """After a fault of the target's: take what is committed to whoever goes on with it.

        False: nobody can, or nothing was committed yet (then the request can be made anew).
        """
        if self.standby is None or not self.answer.text or not self.text_only:
            return False
        found = await self.standby.after(error, self)
        if found is None:
            return False
        target, prompt = found
        self.notes.append(
            f"{self.target.ref} failed in the middle of the answer ({error.outcome}): "
            f"{target.ref} went on from its text"
        )
        told = substitute(self.target.ref, target.ref)
        if told is not None:
            self.answer.ids = None  # Another vocabulary, for all that is known.
            self.loosen(told[0], f"begun by {self.target.ref}, finished by {target.ref}")
        self.target, self.prompt, self.resumed = target, prompt, True
        return True

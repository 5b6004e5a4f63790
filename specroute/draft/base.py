"""What a drafter is: the protocol the engine drives, and the values that pass through it.

Knows nothing of targets, rounds or acceptance. A drafter is asked for K tokens after a committed
text and answers with a proposal; what became of the last proposal it learns from the next
``committed`` it is given (the KV cache keeps the common prefix and drops the rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specroute.context import Committed, Prompt
from specroute.types import Usage
from specroute.vocabulary import Vocabulary


class Distribution(Protocol):
    """q at one position: ``q[token_id]`` is the probability the draft gave that id (0 if none)."""

    def __getitem__(self, token_id: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Up to K drafted tokens. Empty (no text, no ids) means: nothing to propose here.

    ``q`` has one distribution per token for a sampled draft, and is ``None`` for a greedy, n-gram
    or text-only draft, whose q is a point mass on the drafted token.
    """

    text: str
    ids: tuple[int, ...] | None = None
    q: tuple[Distribution | None, ...] | None = None
    ended: bool = False
    """The last token drafted is an end-of-sequence token (its id is in ``ids``, no text)."""
    seconds: float = 0.0
    """Wall-clock time the drafting took."""
    usage: Usage | None = None
    """What a remote draft's provider counted; ``None`` for drafts that cost no tokens."""
    estimated: bool = False
    """``usage`` was counted here: the provider's own count isn't there (yet)."""

    def __len__(self) -> int:
        """Drafted tokens; of a text-only proposal 0 without text, else 1."""
        return len(self.ids) if self.ids is not None else int(bool(self.text))


def joined(a: Proposal, b: Proposal) -> Proposal:
    """Both drafts, one after the other; the empty ``Proposal("", ())`` goes before any. Usage is
    the last known: pieces of one request each have what it came to so far."""
    begun = bool(a)
    ids = (*(a.ids or ()), *b.ids) if b.ids is not None and a.ids is not None else None
    if not b.text and not b.ids:
        ids = a.ids
    q = b.q if not begun else (*a.q, *b.q) if a.q is not None and b.q is not None else None
    last = b if b.usage is not None else a
    seconds = a.seconds + b.seconds
    return Proposal(a.text + b.text, ids, q, b.ended, seconds, last.usage, last.estimated)


def filled(proposal: Proposal, k: int | None) -> bool:
    """Whether a draft stops because it has its ``k`` tokens (``None``: no limit), as far as is
    known."""
    if k is None or proposal.ended:
        return False
    if proposal.ids is not None:
        return len(proposal.ids) >= k
    made = proposal.usage.completion_tokens if proposal.usage is not None else None
    return made is not None and made >= k


class DraftSession(Protocol):
    """Drafting for one request. Not shared between tasks."""

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        """Draft up to ``k`` tokens after prompt + ``committed``.

        ``temperature`` 0 drafts greedily (``q`` is ``None``); above it tokens are *drawn* from the
        full distribution returned in ``q``. Raises :class:`specroute.errors.DraftError`.
        """
        ...

    async def aclose(self) -> None:
        """Give back what the session holds (cache memory); idempotent."""
        ...


class Drafter(Protocol):
    """A source of drafts, shared by all requests of a client.

    One with an attribute ``free = True`` (prompt lookup) takes microseconds and no money: while it
    has nothing to propose, it is asked again at every token of the target's own stream. One with a
    method ``open_aside`` is asked by that instead of ``open`` for answers that are drafted only to
    measure what would have been accepted: nothing of them need stay in a cache.
    """

    name: str

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary its ids are in; ``None``: it can speak any (n-gram) or only text."""
        ...

    async def load(self) -> None:
        """Make it ready (load the model); returns at once when it is. ``vocabulary`` is known from
        then on. Raises :class:`specroute.errors.DraftError`."""
        ...

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> DraftSession:
        """Start drafting for one request. Raises :class:`specroute.errors.DraftError`."""
        ...

    async def aclose(self) -> None:
        """Free the model or client; idempotent."""
        ...


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two id sequences."""
    limit = min(len(a), len(b))
    for i in range(limit):
        if a[i] != b[i]:
            return i
    return limit


__all__ = [
    "Committed",
    "Distribution",
    "DraftSession",
    "Drafter",
    "Prompt",
    "Proposal",
    "common_prefix",
]

"""How a local model's tokens become the target's: the interface, and its plainest form.

A speech says what the model should read for a committed answer, and drafts by asking for logits
step by step, so that the steps of many requests can be one. Knows vocabularies; deliberately no
cache, no thread and no device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from specroute.alignment import TextStream
from specroute.draft.base import Committed, Proposal
from specroute.draft.drawing import draw, unsure
from specroute.vocabulary import Vocabulary

Steps = Generator[Sequence[int], Any, Proposal]
"""Yields ids to forward after all before them, is sent the logits after the last (a 1-D tensor),
returns the draft."""

LEAD_IN = 8
"""Committed ids decoded before the draft's, so that a character may straddle the two."""


class Speech(Protocol):
    """One request's."""

    @property
    def by_ids(self) -> bool:
        """Whether proposals name ids of the target's."""
        ...

    def read(self, committed: Committed) -> tuple[int, ...]:
        """The answer so far in the model's own ids."""
        ...

    def draft(
        self,
        pending: Sequence[int],
        committed: Committed,
        k: int,
        room: int,
        temperature: float,
    ) -> Steps:
        """Up to ``k`` of the target's tokens, in at most ``room`` of the model's. ``pending`` are
        the ids that the model has not seen yet. It ends after a token that the model is unsure
        of."""
        ...


class OneVocabulary:
    """Draft and target have the same vocabulary: ids as they are, with the full q when drawn."""

    by_ids = True

    def __init__(self, vocabulary: Vocabulary, rng: Callable[[], Any], least: float = 0.0) -> None:
        """A draft ends after a token of less probability than ``least``."""
        self._vocabulary, self._rng, self._least = vocabulary, rng, least

    def read(self, committed: Committed) -> tuple[int, ...]:
        if committed.ids is not None:
            return committed.ids
        return self._vocabulary.encode(committed.text)

    def draft(
        self,
        pending: Sequence[int],
        committed: Committed,
        k: int,
        room: int,
        temperature: float,
    ) -> Steps:
        ids: list[int] = []
        qs: list[Any] = []
        rng = self._rng() if temperature > 0 else None
        for _ in range(min(k, room)):
            logits = yield pending
            token, q = draw(logits, temperature, rng)
            ids.append(token)
            qs.append(q)
            if token in self._vocabulary.eos_ids or unsure(logits, q, token, self._least):
                break
            pending = (token,)
        return Proposal(
            text_after(self._vocabulary, self.read(committed), ids),
            tuple(ids),
            tuple(qs) if temperature > 0 else None,
            ids[-1] in self._vocabulary.eos_ids,
        )


def text_after(vocabulary: Vocabulary, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text that ``ids`` complete after the ids ``before``: whole characters."""
    stream = TextStream(vocabulary.decode)
    stream.push(before[-LEAD_IN:])
    return stream.push(ids)

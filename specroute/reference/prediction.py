"""Predicted outputs: how far an answer follows a text that the caller expects.

Knows tokens alone. The counts are those that the vendors document: accepted tokens are those of
the prediction that appeared in the answer, all others of it are rejected and billed as output
(OpenAI's guide to predicted outputs; ``completion_tokens_details`` in its API reference). The
timing is an assumption of this server's own, since no vendor states any: while the answer follows
the prediction, up to ``BURST`` tokens come in the time of one; after a token that is not the
predicted one, ``SLOW`` tokens come at the normal pace.
"""

from __future__ import annotations

from collections.abc import Sequence

BURST = 16
"""Tokens that one step yields at most while the answer follows the prediction."""
SLOW = 8
"""Tokens that come at the normal pace after one that was not predicted."""
ANCHOR = 3
"""Tokens of the answer by which its place in the prediction is found again."""
SURE = 8
"""Tokens in a row after which a place that was found again is the right one."""


class Prediction:
    """One answer's way through its prediction."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)
        self._at: int | None = 0
        """Where the answer is in the prediction; ``None`` while it is somewhere else."""
        self._behind = 0
        """What lies before this place is past."""
        self._run = 0
        """Tokens accepted in a row."""
        self._last: list[int] = []
        self._slow = 0
        self._accepted: set[int] = set()

    @property
    def accepted(self) -> int:
        """Predicted tokens that have appeared in the answer."""
        return len(self._accepted)

    @property
    def rejected(self) -> int:
        """Predicted tokens that have not."""
        return len(self._tokens) - self.accepted

    @property
    def fast(self) -> bool:
        """Whether further tokens may come in the same step."""
        return self._slow == 0 and self._at is not None and self._at < len(self._tokens)

    def follow(self, token: int) -> None:
        """The answer goes on with ``token``."""
        self._slow = max(self._slow - 1, 0)
        if self._at is not None and self._at < len(self._tokens):
            if self._tokens[self._at] == token:
                self._accepted.add(self._at)
                self._at += 1
                self._run += 1
                if self._run >= SURE:
                    self._behind = self._at
                return
            self._at, self._slow, self._last, self._run = None, SLOW, [], 0
        self._last = [*self._last, token][-ANCHOR:]
        if self._at is None and len(self._last) == ANCHOR:
            self._find()

    def _find(self) -> None:
        anchor = tuple(self._last)
        for start in range(self._behind, len(self._tokens) - ANCHOR + 1):
            if self._tokens[start : start + ANCHOR] == anchor:
                self._at = start + ANCHOR
                self._run = ANCHOR
                self._accepted.update(range(start, self._at))
                return

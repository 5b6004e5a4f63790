"""Which leading tokens of a prompt are computed already. By ids; bounded; most recent first.

Knows sequences that run or ran lately and how far each was computed; deliberately not what was
computed (the backend's state holds that) or what it costs (``pace.py``).
"""

from __future__ import annotations

from specroute.reference.backend import State


class PrefixCache:
    """The longest common prefix with recent sequences, to the token (vLLM's works in blocks)."""

    def __init__(self, *, tokens: int, sequences: int = 1024) -> None:
        """Remember at most this many ``sequences`` and ``tokens`` in them."""
        self._sequences, self._tokens = sequences, tokens
        self._entries: list[State] = []

    def find(self, ids: list[int]) -> tuple[State | None, int]:
        """The state that shares the most leading ids, and how many.

        At most ``len(ids) - 1``: the last token is always computed, because what follows it is what
        the request wants to know.
        """
        limit, best, shared = len(ids) - 1, None, 0
        for entry in reversed(self._entries):
            # One that ends or differs there can't be better: most are passed over by this.
            if entry.computed <= shared or entry.ids[shared] != ids[shared]:
                continue
            n = _common(entry.ids, ids, min(limit, entry.computed))
            if n > shared:
                best, shared = entry, n
                if n == limit:
                    break
        return best, shared

    def add(self, state: State, parent: State | None = None) -> None:
        """Remember ``state``; a ``parent`` that it extends entirely is forgotten."""
        if parent is not None and _common(parent.ids, state.ids, len(parent.ids)) == len(
            parent.ids
        ):
            self._entries = [e for e in self._entries if e is not parent]
        self._entries.append(state)
        total = 0
        for kept, entry in enumerate(reversed(self._entries)):
            total += len(entry.ids)
            if kept and (kept >= self._sequences or total > self._tokens):
                del self._entries[: len(self._entries) - kept]
                break

    def clear(self) -> None:
        """Forget everything."""
        self._entries = []


def _common(a: list[int], b: list[int], limit: int) -> int:
    high = min(len(a), len(b), limit)
    if high <= 0 or a[0] != b[0]:
        return 0
    if a[:high] == b[:high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

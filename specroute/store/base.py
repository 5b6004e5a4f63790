"""What a store must do. Two operations, so that one over another database stays small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specroute.store.window import Change, Refusal, Want


class Store(Protocol):
    """Sums by (key, slot), shared by whoever uses the same store.

    May be used from several threads and event loops, and in forked children.
    """

    async def take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        """Book every want in its window's running slot at ``now``, or none of them.

        One atomic step for all who share the store. Returns the first want that doesn't fit.
        Raises :class:`~specroute.errors.StoreFailed`.
        """
        ...

    def change(self, changes: Sequence[Change]) -> None:
        """Correct what was booked. Never raises or waits: may be done a little later, in order."""
        ...

    async def aclose(self) -> None:
        """Finish the changes and let go of files and connections; idempotent."""
        ...

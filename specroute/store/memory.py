"""A store for one process: a table in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from specroute.store.window import Change, Refusal, Want, refusal


class MemoryStore:
    """Shared by the threads and loops of a process. A forked child goes on with a copy."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, float]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():
            # Another thread of the parent may have held it just then.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    async def take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        return self.take_now(wants, now)

    def take_now(self, wants: Sequence[Want], now: float) -> Refusal | None:
        """As :meth:`take`, from any thread."""
        with self._locked():
            for want in wants:
                sums = self._sums.setdefault(want.key, {})
                for slot in [s for s in sums if s < want.window.oldest(now)]:
                    del sums[slot]
                refused = refusal(want, sums, now)
                if refused is not None:
                    return refused
            for want in wants:
                sums, slot = self._sums[want.key], want.window.slot(now)
                sums[slot] = sums.get(slot, 0.0) + want.amount
        return None

    def change(self, changes: Sequence[Change]) -> None:
        with self._locked():
            for change in changes:
                sums = self._sums.get(change.key, {})
                if change.slot in sums:
                    sums[change.slot] = max(sums[change.slot] + change.amount, 0.0)

    def learn(self, key: str, slot: int, amount: float) -> None:
        """``key`` holds ``amount`` in all, whoever booked it; all of it counts as in ``slot``."""
        with self._locked():
            self._sums[key] = {slot: amount}

    async def aclose(self) -> None:
        """Nothing to let go of."""

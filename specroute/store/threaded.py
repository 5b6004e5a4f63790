"""A store whose work is done in one thread of its own, in order; what such stores share.

Knows threads, forks and cancelled callers; nothing of what is written where.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from specroute.errors import StoreFailed
from specroute.store.window import Change, Refusal, Want

log = logging.getLogger("specroute")


class ThreadedStore(ABC):
    """Subclasses say how sums are booked; all of it happens in the store's thread."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """In a forked child: a thread of its own, and whatever the parent had open left alone."""
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="specroute store")

    @abstractmethod
    def _take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        """Book all or none. Raises :class:`StoreFailed`."""

    @abstractmethod
    def _change(self, changes: Sequence[Change]) -> None:
        """Correct what was booked. Raises :class:`StoreFailed`."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of files and connections; idempotent."""

    def _worker(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():
            self._reset()
        return self._threads

    async def take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        """Waits off the event loop. A caller that is cancelled meanwhile has taken nothing."""
        work = self._worker().submit(self._take, wants, now)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.cancel():
                work.add_done_callback(lambda done: self._undo(done, wants, now))
            raise

    def _undo(self, done: Future[Refusal | None], wants: Sequence[Want], now: float) -> None:
        if done.exception() is None and done.result() is None:
            self.change([Change(w.key, w.window.slot(now), -w.amount) for w in wants])

    def change(self, changes: Sequence[Change]) -> None:
        """Booked in the store's thread, in order."""
        try:
            self._worker().submit(self._guarded_change, changes)
        except RuntimeError:
            self._guarded_change(changes)  # Closed, or the interpreter is ending.

    def _guarded_change(self, changes: Sequence[Change]) -> None:
        try:
            self._change(changes)
        except StoreFailed as error:
            log.warning("%s; what was reserved stays booked", error)

    async def aclose(self) -> None:
        """Finish the changes and let go; idempotent."""
        if self._pid != os.getpid():
            return
        threads = self._threads
        try:
            closing = threads.submit(self._close)
        except RuntimeError:
            return
        await asyncio.wrap_future(closing)
        threads.shutdown(wait=False)

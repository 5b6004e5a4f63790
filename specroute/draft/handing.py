"""Drafts that end in one pass through the model reach their event loop in one turn.

Each by itself would wake the loop while the pass's other drafts are still being read off, once a
draft; together they cost one wake-up, and what follows from them (scoring) can leave together.
Knows futures, threads and loops; nothing of drafts.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

Pair = tuple["asyncio.Future[Any]", "Future[Any]"]


class Handing:
    """Between one working thread, which calls :meth:`flush`, and any number of loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over: dict[asyncio.AbstractEventLoop, list[Pair]] = {}

    def awaited(self, future: Future[T]) -> asyncio.Future[T]:
        """What ``future`` comes to, for the running loop; known there at the next flush."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[T] = loop.create_future()

        def over(done: Future[T]) -> None:
            with self._lock:
                self._over.setdefault(loop, []).append((mine, done))

        future.add_done_callback(over)
        if future.done():  # Perhaps after the last flush.
            self.flush()
        return mine

    def flush(self) -> None:
        """Tell every loop of all that has ended; from any thread."""
        with self._lock:
            ended, self._over = self._over, {}
        for loop, pairs in ended.items():
            with suppress(RuntimeError):  # It is closed: nobody waits there.
                loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: list[Pair]) -> None:
    for mine, done in pairs:
        if mine.done():
            continue
        error = done.exception()
        if error is not None:
            mine.set_exception(error)
        else:
            mine.set_result(done.result())

"""Tasks that must outlive the call that started them, and nothing else.

Knows every task it started and ends them when it is closed. asyncio only. A task group opened in
one task can't be closed by a reader in another, which is why this exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

log = logging.getLogger("specroute")

FINISH_S = 2.0
"""How long closing waits for what should finish."""


class Supervisor:
    """Starts tasks, keeps them from being collected, logs what they raise, ends them at close."""

    __slots__ = ("_closed", "_finishing", "_over", "_tasks")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()
        """Those of them that closing waits for."""
        self._closed = False
        self._over = False

    @property
    def running(self) -> int:
        """How many tasks are alive."""
        return len(self._tasks)

    def spawn(
        self,
        work: Coroutine[Any, Any, Any],
        *,
        name: str,
        apart: bool = False,
        finish: bool = False,
    ) -> asyncio.Task[Any] | None:
        """Run ``work`` on the running loop; ``None`` (and nothing run) once closed.

        ``apart``: it is no part of the request that happened to start it, so it sees none of that
        one's context: what it may cost, its span, the ``reports()`` blocks around it. ``finish``:
        closing waits for it, :data:`FINISH_S` at most, before it is ended.
        """
        if self._over if finish else self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(
            work, name=name, context=Context() if apart else None
        )
        self._tasks.add(task)
        if finish:
            self._finishing.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._finishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s failed: %s", task.get_name(), type(error).__name__, exc_info=error)

    async def aclose(self) -> None:
        """Cancel what still runs on this loop and wait for it; further ``spawn`` do nothing."""
        self._closed = True
        await self._end(self._mine() - self._finishing)
        if finishing := self._mine() & self._finishing:
            await asyncio.wait(finishing, timeout=FINISH_S)
        self._over = True
        await self._end(self._mine())

    def _mine(self) -> set[asyncio.Task[Any]]:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        return {t for t in self._tasks if t is not here and t.get_loop() is loop}

    @staticmethod
    async def _end(tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

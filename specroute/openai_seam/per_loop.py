"""One value for each event loop, made where it is first asked for.

Knows loops, threads and forks: what belongs to a loop (connections, tasks, locks) is never shown
to another one, nor to a child process. Deliberately does not know what the values are.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_S = 2.0
"""How long to wait for another thread's loop to close what is its own."""


class PerLoop(Generic[T]):
    """``make`` is called at once, for whichever loop asks first, and once for each further loop.

    ``again=False``: there is only one value (``make`` gives the user's own object), so a second
    loop or a forked child gets a :class:`RuntimeError` that says ``why``. A loop that has been
    closed no longer counts: its value is dropped, or taken over where there is only one.
    """

    def __init__(self, make: Callable[[], T], *, again: bool = True, why: str = "") -> None:
        self._make = make
        self._again = again
        self._why = why
        self._reset()
        self._unbound: T | None = make()
        self._latest: T = self._unbound

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """The running loop's value; a call from outside any loop is an error."""
        if self._pid != os.getpid():
            self._forked()
        loop = asyncio.get_running_loop()
        found = self._values.get(loop)
        return self._bind(loop) if found is None else found

    def peek(self) -> T:
        """A value to look at: the running loop's if it has one, else the one made last."""
        if self._pid != os.getpid() and self._again:
            self._forked()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._latest
        return self._values.get(loop, self._latest)

    def exchange(self, change: Callable[[T], T], make: Callable[[], T]) -> list[T]:
        """Put ``change(value)`` in the place of every value, and have further ones made by
        ``make``; the old values. If ``change`` raises, nothing has changed."""
        with self._lock:
            changed: dict[int, T] = {}
            old: list[T] = []
            for value in (self._latest, self._unbound, *self._values.values()):
                if value is not None and id(value) not in changed:
                    changed[id(value)] = change(value)
                    old.append(value)
            self._make = make
            self._latest = changed[id(self._latest)]
            if self._unbound is not None:
                self._unbound = changed[id(self._unbound)]
            self._values = {loop: changed[id(v)] for loop, v in self._values.items()}
            return old

    def _bind(self, loop: asyncio.AbstractEventLoop) -> T:
        with self._lock:
            for old in [each for each in self._values if each.is_closed()]:
                gone = self._values.pop(old)
                if not self._again:
                    self._unbound = gone
            value, self._unbound = self._unbound, None
            if value is None:
                if not self._again:
                    raise RuntimeError(
                        f"{self._why} is in use on another event loop, and its connections belong "
                        "to that one: make one client for each loop, or leave it out"
                    )
                value = self._make()
            self._values[loop] = self._latest = value
            return value

    def _forked(self) -> None:
        """This process is a child of the one that made the values: they stay the parent's."""
        if not self._again:
            raise RuntimeError(
                f"this process was forked after the client was made with {self._why}, whose "
                "connections are the parent's: make a client in the child, or leave it out"
            )
        parents = (self._values, self._unbound, self._latest)
        self._reset()
        _kept.append(parents)  # Finalisers would write to the parent's connections.
        self._unbound = self._latest = self._make()

    async def aclose(self, close: Callable[[T], Awaitable[None]]) -> None:
        """Close every value on its own loop; one whose loop is closed or stands still can't be."""
        if self._pid != os.getpid():
            return
        here = asyncio.get_running_loop()
        with self._lock:
            values = dict(self._values)
            if self._unbound is not None:
                values.setdefault(here, self._unbound)
        elsewhere = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_closing(close, value), loop))
            for loop, value in values.items()
            if loop is not here and loop.is_running()
        ]
        if here in values:
            await close(values[here])
        if elsewhere:
            with suppress(TimeoutError):
                await asyncio.wait(elsewhere, timeout=CLOSE_S)


async def _closing(close: Callable[[T], Awaitable[None]], value: T) -> None:
    await close(value)


_kept: list[object] = []
"""What a forked child has of its parent's."""

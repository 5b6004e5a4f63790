"""Work that a cancellation must not break off halfway: giving a connection back, tidying up.

A pool of connections that is interrupted while it takes one back never takes it back: its place
stays occupied for good. Transports guard themselves against the cancel scopes of anyio, which a
``task.cancel()`` passes by. Calls that are being ended are booked when they are over: whoever stops
waiting for them closes the books too soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any


@coroutine
def unbroken(work: Awaitable[Any]) -> Generator[Any, Any, None]:
    """Await ``work`` in this task; a cancellation that comes while it only lets others run
    (``sleep(0)``) is raised when it is done. One that finds it waiting for something reaches it."""
    steps: Any = work.__await__()
    cancelled: asyncio.CancelledError | None = None
    go_on, value = steps.send, None
    while True:
        try:
            awaited = go_on(value)
        except StopIteration:
            break
        except Exception as error:
            if cancelled is not None:
                raise cancelled from error
            raise
        go_on, value = steps.send, None
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001 - handed on
            if awaited is None and isinstance(error, asyncio.CancelledError):
                cancelled = error
            else:
                go_on, value = steps.throw, error
    if cancelled is not None:
        raise cancelled


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Wait until tasks that were cancelled are over; a cancellation that comes meanwhile is raised
    then."""
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

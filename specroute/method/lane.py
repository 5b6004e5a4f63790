"""One lane of ``prefix``: a stream read ahead of its turn, from a given place in the answer.

Knows how to read itself into a buffer and how to be ended. Knows nothing of the other lanes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import perf_counter

from specroute.errors import ProviderError
from specroute.target.stream import Piece


class Lane:
    """A stream from position ``start`` (ids: tokens of the answer; text: characters of it).

    ``start_tokens``: tokens of the answer before it. Reading begins at once, in a task of its own;
    the answer's ``max_tokens`` bounds what it can buffer.
    """

    def __init__(
        self,
        stream: AsyncGenerator[Piece],
        start: int,
        start_tokens: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.start = start
        self.start_tokens = start_tokens
        self.started_at = clock()
        self.ready_at: float | None = None
        """When its first piece came."""
        self._clock = clock
        self._stream = stream
        self._pieces: deque[Piece] = deque()
        self._error: ProviderError | None = None
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name="lane")

    async def _read(self) -> None:
        try:
            async with aclosing(self._stream):
                async for piece in self._stream:
                    if self.ready_at is None:
                        self.ready_at = self._clock()
                    self._pieces.append(piece)
                    self._arrived.set()
        except ProviderError as error:
            self._error = error
        finally:
            self._arrived.set()

    @property
    def ready(self) -> bool:
        """Its first token is there."""
        return bool(self._pieces)

    @property
    def over(self) -> bool:
        """It has ended, and its line is in the book."""
        return self._task.done()

    @property
    def broken(self) -> bool:
        """It ended in an error before anything came."""
        return self._error is not None and not self._pieces

    @property
    def waiting(self) -> int:
        """Ids, or characters, that have arrived and were not taken yet."""
        return sum(len(p.text) if p.ids is None else len(p.ids) for p in self._pieces)

    def buffered_text(self) -> str:
        """The text of what has arrived and was not taken yet."""
        return "".join(piece.text for piece in self._pieces)

    async def next(self) -> Piece | None:
        """The next piece, ``None`` at the end; raises the provider error that ended it early."""
        while not self._pieces:
            if self._task.done():
                if self._error is not None:
                    raise self._error
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._pieces.popleft()

    def cancel(self) -> None:
        """Begin to end it and its upstream; idempotent."""
        self._task.cancel()

    @property
    def reading(self) -> asyncio.Task[None]:
        """When it is over, its line is in the book."""
        return self._task

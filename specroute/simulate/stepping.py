"""A virtual clock, and what steps all that is there together: a paced target, a batched drafter.

A step advances every sequence by one token; what arrives meanwhile joins the next one, which then
also reads its prompt (continuous batching, Orca, OSDI 2022; the reference server's loop). Knows no
requests.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


class Clock:
    """Runs what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._ticket), then))

    def run(self) -> None:
        """To the end of all that is due."""
        while self._due:
            self.now, _, then = heapq.heappop(self._due)
            then()


@dataclass(slots=True)
class Sequence:
    """``prompt`` tokens are read in its first step; each step makes one of ``left``."""

    prompt: float
    left: int
    told: Callable[[], None]
    """After each token;"""
    done: Callable[[], None]
    """and after the last."""


class Stepping:
    """``step``: seconds of one that reads so many prompt tokens beside so many sequences."""

    def __init__(self, clock: Clock, step: Callable[[float, int], float], most: int = 256) -> None:
        self._clock, self._step, self._most = clock, step, most
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._busy = False

    def submit(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin)  # What comes at the same moment joins.

    def _begin(self) -> None:
        prompt = 0.0
        while self._waiting and len(self._running) < self._most:
            joined = self._waiting.popleft()
            prompt += joined.prompt
            self._running.append(joined)
        self._busy = bool(self._running)
        if self._running:
            self._clock.after(self._step(prompt, len(self._running)), self._end)

    def _end(self) -> None:
        stepped, self._running = self._running, []
        over = []
        for sequence in stepped:
            sequence.left -= 1
            if sequence.left > 0:
                self._running.append(sequence)
                sequence.told()
            else:
                over.append(sequence)
        for sequence in over:
            sequence.told()
            sequence.done()
        self._begin()

"""Many drafts through one model, step by step: who joins, who leaves, in what order.

Continuous batching (Orca, OSDI 2022): drafts join and leave between steps, and a step forwards
what all of them ask for. Knows jobs (generators that ask for forwards) and one thread; nothing of
sessions, speech or sampling.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from specroute.draft.decoder import Cache, Decoder
from specroute.draft.pages import OutOfPages

T = TypeVar("T")

Asking = Generator[tuple[Sequence[int], Cache], Any, T]
"""Yields (ids, cache), is sent the logits after the last id."""

MOST = 64
"""Drafts in one step; others wait their turn."""
BLOCK = 512
"""Tokens a step reads of prompts, so that a cancelled draft ends soon …"""
BLOCK_BESIDE = 128
"""… and while others are being drafted, so that they go on."""


class Halted(Exception):
    """Thrown into a job whose caller is gone."""


class Stepper:
    """Runs jobs on a decoder in a thread of its own, which lives while there are any."""

    def __init__(
        self, decoder: Decoder, name: str, passed: Callable[[], None] = lambda: None
    ) -> None:
        """``passed`` is called when jobs may have ended: after a pass, and when some joined."""
        self.decoder = decoder
        self._passed = passed
        self.steps = 0
        """Passes through the model so far; with ``decoder.forwarded``, how full they were."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"specroute-step-{name}")
        self._lock = threading.Lock()
        self._waiting: deque[_Job[Any]] = deque()
        self._running = False
        self._closed = False

    def submit(self, asking: Asking[T], gone: Callable[[], bool]) -> Future[T]:
        """Run a job to its end. As soon as ``gone()`` it is thrown :class:`Halted` instead of its
        next logits. Raises ``RuntimeError`` once closed."""
        job = _Job(asking, gone)
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            self._waiting.append(job)
            if not self._running:
                self._running = True
                self._executor.submit(self._loop)
        return job.future

    def close(self) -> None:
        """End what runs at its next step, and what waits."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=False)

    def _loop(self) -> None:
        import torch

        active: list[_Job[Any]] = []
        try:
            with torch.inference_mode():
                while self._joined(active):
                    for job in active:
                        if self._closed or job.gone():
                            job.fail(Halted())
                    active = self._still(active)
                    self._passed()
                    if active:
                        self._step(active)
                        active = self._still(active)
                        self._passed()
        except BaseException as error:  # not a model's fault: nobody may wait for ever
            with self._lock:
                self._running = False
                jobs = [*active, *self._waiting]
                self._waiting.clear()
            for job in jobs:
                if not job.over:
                    job.future.set_exception(error)
            self._passed()
            raise

    def _joined(self, active: list[_Job[Any]]) -> bool:
        """Let waiting jobs in; false if there is nothing to do any more."""
        with self._lock:
            joining = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), MOST - len(active)))
            ]
            if not active and not joining:
                self._running = False
                return False
        for job in joining:
            if job.gone():
                job.over = True
                job.future.set_exception(Halted())
                job.asking.close()
                continue
            job.go_on(None)
            if not job.over:
                active.append(job)
        return True

    def _still(self, active: list[_Job[Any]]) -> list[_Job[Any]]:
        left = [job for job in active if not job.over]
        if len(left) < len(active):  # There may be room again.
            for job in left:
                job.held = False
        return left

    def _step(self, active: list[_Job[Any]]) -> None:
        """One pass: a token of each draft, and some of the prompts that are still being read."""
        able = [job for job in active if not job.held]
        if not able:
            _make_room(active)
            return
        drafting = [job for job in able if len(job.left) == 1]
        block = BLOCK_BESIDE if drafting else BLOCK
        parts = [(job, 1) for job in drafting]
        for job in able:  # in the order in which they came
            if len(job.left) > 1 and block:
                parts.append((job, min(len(job.left), block)))
                block -= parts[-1][1]
        self.steps += 1
        if len(parts) > 1 and self.decoder.batches:
            try:
                rows = self.decoder.forward_many([(j.left[:n], j.cache) for j, n in parts])
            except Exception:  # noqa: BLE001 - whose fault it is, shows alone
                rows = None
            if rows is not None:
                for (job, count), row in zip(parts, rows, strict=True):
                    job.forwarded(count, row)
                return
        for job, count in parts:
            try:
                row = self.decoder.forward(job.left[:count], job.cache)
            except OutOfPages:
                job.held = True
            except Exception as error:  # noqa: BLE001 - the job says what it means
                job.fail(error)
            else:
                job.forwarded(count, row)


def _make_room(active: Sequence[_Job[Any]]) -> None:
    """Nobody can go on: the newest that has any memory gives it up, and reads its tokens again when
    somebody has left (preemption by recomputation, arXiv 2309.06180, section 4.5). So the oldest
    always ends, if it fits at all."""
    newest = next((job for job in reversed(active[1:]) if job.cache.ids), None)
    if newest is None:
        active[0].fail(OutOfPages("the draft's cache is full (see max_memory)"))
    else:
        newest.left = (*newest.cache.ids, *newest.left)
        newest.cache.release()
    for job in active:
        job.held = job is not active[0] and not job.cache.ids


class _Job(Generic[T]):
    def __init__(self, asking: Asking[T], gone: Callable[[], bool]) -> None:
        self.asking, self.gone = asking, gone
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()  # Cancelling it is `gone`'s matter.
        self.left: Sequence[int] = ()
        self.cache: Any = None
        self.held = False
        """Waits for memory that others use."""
        self.over = False

    def forwarded(self, count: int, row: Any) -> None:
        self.left = self.left[count:]
        if not self.left:
            self.go_on(row)

    def go_on(self, row: Any) -> None:
        self._until_asked(lambda: self.asking.send(row))

    def fail(self, error: Exception) -> None:
        self._until_asked(lambda: self.asking.throw(error))

    def _until_asked(self, further: Callable[[], tuple[Sequence[int], Cache]]) -> None:
        try:
            self.left, self.cache = further()
        except StopIteration as end:
            self.over = True
            self.future.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - it reaches whoever waits for the draft
            self.over = True
            self.future.set_exception(error)

"""One thread with an event loop, shared by every synchronous client of a process.

Knows how work is given to the loop from other threads and when the thread may end. Deliberately
knows nothing of what runs on it. A forked child gets a thread of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from specroute.http.supervisor import Supervisor

T = TypeVar("T")


class LoopThread:
    """A running loop. A :class:`Hold` gives the shared one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.users = 0
        self._over = False
        self._lock = threading.Lock()
        self._supervisor = Supervisor()
        self._thread = threading.Thread(target=self._run, name="specroute", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work()`` on the loop, in the caller's context, and wait for what it gives.

        An interruption of the wait (Ctrl-C) cancels it. :class:`RuntimeError` on the loop's own
        thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a synchronous client was called on its own loop thread (from an on_report "
                "callback?), which would wait for itself: use AsyncSpecRoute there"
            )
        future = self._start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client was closed while this call was under way") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def over(self) -> bool:
        """Whether it has ended; a child process's copy has."""
        return self._over or self.pid != os.getpid()

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if self.pid != os.getpid():
            raise RuntimeError(
                "this process was forked while the call was under way: what the parent has begun "
                "(a stream, say) is the parent's; begin it anew"
            )
        with self._lock:
            if self._over:
                raise RuntimeError("the client has been closed")
            return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def end_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """From a finaliser, on any thread: run ``work`` and release the thread. Takes no lock,
        since a finaliser may run while this very thread holds it."""
        if self.pid == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._finish, work)

    def _finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._supervisor.spawn(work(), name="end of a dropped client")
        assert task is not None
        task.add_done_callback(lambda _: _release(self))

    def stop(self) -> None:
        """End the loop and whatever still runs on it, and wait for that."""
        with self._lock:
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


_shared: LoopThread | None = None
_lock = threading.Lock()


class Hold:
    """The shared thread as one client holds it: from its first call to its end."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    def get(self) -> LoopThread:
        """The thread, started if there is none."""
        global _shared
        thread = self._thread
        if thread is not None and thread.pid == os.getpid():
            return thread
        with _lock:
            thread = self._thread
            if thread is None or thread.pid != os.getpid():
                if _shared is None or _shared.pid != os.getpid():
                    _shared = LoopThread()
                thread = self._thread = _shared
                thread.users += 1
            return thread

    def end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work``, then let go; the last one out ends the thread."""
        thread = self.get()
        try:
            thread.call(work)
        finally:
            self._thread = None
            _release(thread)

    def end_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The same from a finaliser, without waiting."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end_soon(work)


def _release(thread: LoopThread) -> None:
    global _shared
    if thread.pid != os.getpid():
        return
    with _lock:
        thread.users -= 1
        if thread.users:
            return
        if _shared is thread:
            _shared = None
    thread.stop()


def _after_fork() -> None:
    """The parent may have held the lock just then."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

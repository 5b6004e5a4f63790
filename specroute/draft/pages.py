"""Which page of key-value memory belongs to whom: counted, shared by equal beginnings, reused.

Pure bookkeeping over page numbers; knows no tensors and no models. A page holds a fixed number of
tokens. A full page is kept under a key for its content and everything before it, so that another
sequence with the same beginning shares it, also after its first owner has gone (block hashes as in
vLLM's prefix cache, arXiv 2309.06180 for the paging itself). Safe to use from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence


class OutOfPages(MemoryError):
    """Every page is in use by a sequence that is being worked on."""


class PagePool:
    """At most ``most`` pages. ``reclaim`` is asked to release some when there is none left; it
    returns false if it has none to give."""

    def __init__(self, most: int, reclaim: Callable[[], bool] = lambda: False) -> None:
        self.most = max(1, most)
        self.reclaim = reclaim
        self.made = 0
        """Pages that were ever handed out: numbers below this."""
        self._lock = threading.Lock()
        self._blank: list[int] = []
        self._known: dict[int, int] = {}
        """Content key → page."""
        self._keys: dict[int, int] = {}
        """The inverse."""
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Pages that nobody uses and whose content is known; the one left longest ago first."""
        self._users: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Pages that some sequence uses."""
        return len(self._users)

    def take(self) -> int:
        """A page to write on. Raises :class:`OutOfPages`."""
        while True:
            with self._lock:
                page = self._free()
                if page is not None:
                    self._users[page] = 1
                    return page
            if not self.reclaim():
                raise OutOfPages(f"all {self.most} pages of the draft's cache are in use")

    def _free(self) -> int | None:
        if self._blank:
            return self._blank.pop()
        if self.made < self.most:
            self.made += 1
            return self.made - 1
        if self._kept:
            page, _ = self._kept.popitem(last=False)
            self._forget(page)
            return page
        return None

    def share(self, key: int) -> int | None:
        """The page with that content, in use by one more sequence; ``None`` if there is none."""
        with self._lock:
            page = self._known.get(key)
            if page is not None:
                self._kept.pop(page, None)
                self._users[page] = self._users.get(page, 0) + 1
            return page

    def keep(self, page: int, key: int) -> None:
        """A page is full: others may share it from now on."""
        with self._lock:
            if key not in self._known and page not in self._keys:
                self._known[key], self._keys[page] = page, key

    def writable(self, page: int) -> bool:
        """Whether a page may be written on by its one user (its old content is then forgotten);
        false: it is shared and has to be copied first."""
        with self._lock:
            if self._users[page] > 1:
                return False
            self._forget(page)
            return True

    def release(self, pages: Sequence[int]) -> None:
        """One user less for each."""
        with self._lock:
            for page in pages:
                self._users[page] -= 1
                if self._users[page]:
                    continue
                del self._users[page]
                if page in self._keys:
                    self._kept[page] = None
                else:
                    self._blank.append(page)

    def _forget(self, page: int) -> None:
        key = self._keys.pop(page, None)
        if key is not None:
            del self._known[key]

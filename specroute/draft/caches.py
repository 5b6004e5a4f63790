"""The caches of all sessions of one local drafter, bounded, least recently used first.

Knows how many tokens each holds, or that a pool of pages does; nothing of models. A cache is taken
out while it is worked on, so a session that closes meanwhile is simply not put back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from specroute.draft.decoder import Cache


class Caches:
    """At most ``limit`` tokens over all sessions, the one just put back always stays; with ``None``
    they are dropped when somebody who runs out of memory asks for it."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._held: OrderedDict[int, Cache] = OrderedDict()

    def open(self, key: int) -> None:
        """A session begins."""
        with self._lock:
            self._open.add(key)

    def take(self, key: int) -> Cache | None:
        """The session's cache, or ``None`` if it has none (yet, or any more)."""
        with self._lock:
            return self._held.pop(key, None)

    def put(self, key: int, cache: Cache) -> None:
        """Give it back as the most recently used, and drop old ones beyond the limit."""
        with self._lock:
            if key not in self._open:
                cache.release()
                return
            self._held[key] = cache
            while self.limit is not None and len(self._held) > 1 and self._tokens() > self.limit:
                self._held.popitem(last=False)[1].release()

    def drop_oldest(self) -> bool:
        """Drop the cache that was used longest ago; false if none is held."""
        with self._lock:
            if not self._held:
                return False
            self._held.popitem(last=False)[1].release()
            return True

    def close(self, key: int) -> None:
        """The session has ended."""
        with self._lock:
            self._open.discard(key)
            cache = self._held.pop(key, None)
            if cache is not None:
                cache.release()

    def clear(self) -> None:
        """Drop every cache; sessions go on and fill theirs anew."""
        with self._lock:
            for cache in self._held.values():
                cache.release()
            self._held.clear()

    @property
    def tokens(self) -> int:
        """Tokens held."""
        with self._lock:
            return self._tokens()

    def _tokens(self) -> int:
        return sum(len(cache.ids) for cache in self._held.values())

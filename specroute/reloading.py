"""A config file that may change while its client runs: read again on demand, or when it does.

Knows the source of a client's config and the file's marks. A file that is wrong changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from specroute.config import Config
from specroute.errors import ConfigError

log = logging.getLogger("specroute")

WATCH_S = 1.0
"""How often a watched file is looked at."""

_Mark = tuple[int, int] | None


class Watcher:
    """Looks at ``path`` every ``every`` seconds; ``read`` makes a config of it, ``use`` takes that.

    A change is read once the file has stayed the same between two looks, so that a half-written
    one is left alone. ``read`` runs in a thread and may raise :class:`ConfigError`, ``use`` runs on
    the loop and may, too: then the problems are logged and the old config stays.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[], Config],
        use: Callable[[Config], object],
        every: float = WATCH_S,
    ) -> None:
        self._path = path
        self._read = read
        self._use = use
        self._every = every
        self._known = _mark(path)
        self._seen = self._known

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> bool:
        """Look once; whether a new config has been taken."""
        mark = await asyncio.to_thread(_mark, self._path)
        settled, self._seen = mark == self._seen, mark
        if mark == self._known or not settled or mark is None:
            return False
        self._known = mark
        try:
            self._use(await asyncio.to_thread(self._read))
        except ConfigError as error:
            log.warning("the config stays as it was: %s", error)
            return False
        log.info("took the new config from %s", self._path)
        return True


def _mark(path: Path) -> _Mark:
    try:
        found = path.stat()
    except OSError:
        return None  # Being replaced, or gone: the old config stays.
    return found.st_mtime_ns, found.st_size

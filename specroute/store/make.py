"""Which store a config asks for."""

from __future__ import annotations

from pathlib import Path

from specroute.config import StoreConfig
from specroute.store.base import Store
from specroute.store.file import FileStore
from specroute.store.memory import MemoryStore


def make_store(config: StoreConfig) -> Store:
    """A store of that kind; a file or connection is opened when it is first used.

    Raises :class:`~specroute.errors.ConfigError` for Redis without redis-py."""
    if config.kind == "memory":
        return MemoryStore()
    if config.kind == "redis":
        from specroute.store.redis import RedisStore, check_installed

        check_installed()
        assert config.url is not None
        return RedisStore(config.url)
    if config.path is not None:
        return FileStore(config.path)
    import platformdirs

    return FileStore(Path(platformdirs.user_state_dir("specroute", False)) / "limits.sqlite3")

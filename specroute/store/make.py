"""Which store a config asks for."""

from __future__ import annotations

from pathlib import Path

from specroute.config import StoreConfig
from specroute.store.base import Store
from specroute.store.file import FileStore
from specroute.store.memory import MemoryStore


def make_store(config: StoreConfig) -> Store:
    """A store of that kind; a file is opened when it is first used."""
    if config.kind == "memory":
        return MemoryStore()
    if config.path is not None:
        return FileStore(config.path)
    import platformdirs

    return FileStore(Path(platformdirs.user_state_dir("specroute", False)) / "limits.sqlite3")

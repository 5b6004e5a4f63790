"""Where what has been taken of limits and budgets is kept, so that several callers share it.

Knows sums per key and slot (``window``), and how to add to them atomically. Knows no provider,
price or policy.
"""

from specroute.store.base import Store
from specroute.store.file import FileStore
from specroute.store.make import make_store
from specroute.store.memory import MemoryStore

__all__ = ["FileStore", "MemoryStore", "Store", "make_store"]

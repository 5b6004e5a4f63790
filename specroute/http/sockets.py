"""Connections are open files: how many a client may hold in this process.

Knows the process's limit on open files and how an error looks that comes of it. Knows no provider.
"""

from __future__ import annotations

import errno
from typing import Any

import httpx2

CONNECTIONS = 1000
"""Connections of one client, where the process may open so many files."""
KEPT_ALIVE = 100
"""Of them those that wait for a further request."""
SPARE_FILES = 128
"""Files that are left to the rest of the process."""
LEAST = 16


def open_files() -> int | None:
    """How many files this process may have open; ``None`` where that is not limited or known."""
    try:
        import resource
    except ImportError:  # Windows: sockets are no files.
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def limits(files: int | None) -> httpx2.Limits:
    """What a client may hold: past it requests wait for a connection, in the order in which they
    came, under their own deadline, rather than fail for want of a file."""
    most = CONNECTIONS if files is None else min(CONNECTIONS, max(files - SPARE_FILES, LEAST))
    return httpx2.Limits(max_connections=most, max_keepalive_connections=min(KEPT_ALIVE, most))


def raise_open_files(wanted: int) -> int | None:
    """Raise this process's own limit towards ``wanted``, as far as it may; the limit then. For a
    process that is ours: a library leaves the limits of its app alone."""
    files = open_files()
    if files is None or files >= wanted:
        return files
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def out_of_files(error: BaseException | None) -> bool:
    """Whether an error, or what it came of, is that no more files may be opened."""
    seen = set[int]()
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, OSError) and each.errno in (errno.EMFILE, errno.ENFILE):
            return True
        waiting += [each.__cause__, each.__context__]
        waiting += getattr(each, "exceptions", ())
    return False

"""Which process torch was first used in: a forked child of that one can't use it.

CUDA refuses to be initialised again, and the thread pools of a CPU build wait in the child for
threads that only the parent has. Knows process ids, not torch.
"""

from __future__ import annotations

import os

from specroute.errors import DraftError

_used_in: int | None = None


def claim() -> None:
    """torch is about to be used here. :class:`DraftError` in a forked child of its process."""
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()
    elif _used_in != os.getpid():
        raise DraftError(
            "this process was forked from one that had used torch, which can't be used again here: "
            "start workers with 'spawn', or fork before the first call"
        )

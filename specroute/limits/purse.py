"""The dollars that one request may cost: what is spent, what is reserved, what must stay.

Pure. Knows numbers. A plain answer must stay affordable as long as none is under way, so calls that
could be left out (rounds, lanes, drafts) get only what is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar


class Purse:
    """``limit`` dollars for one request; ``plain``: what a plain answer may come to.

    Not for several threads: a request lives on one loop.
    """

    __slots__ = ("_plain", "_running", "limit", "reserved", "spent")

    def __init__(self, limit: float, plain: float) -> None:
        self.limit = limit
        self.spent = 0.0
        self.reserved = 0.0
        self._plain = plain
        self._running = 0

    @property
    def left(self) -> float:
        """Neither spent nor reserved."""
        return max(self.limit - self.spent - self.reserved, 0.0)

    def fits(self, usd: float, *, needed: bool) -> bool:
        """Whether a call of up to ``usd`` may leave. ``needed``: the answer can't do without."""
        kept = 0.0 if needed or self._running else self._plain
        return self.spent + self.reserved + usd + kept <= self.limit * (1 + 1e-9)

    def reserve(self, usd: float, *, needed: bool) -> None:
        """A call of up to ``usd`` leaves."""
        self.reserved += usd
        self._running += needed

    def settle(self, reserved: float, spent: float, *, needed: bool) -> None:
        """That call is over and came to ``spent``."""
        self.reserved -= reserved
        self.spent += spent
        self._running -= needed


current: ContextVar[Purse | None] = ContextVar("specroute_purse", default=None)
"""The purse of the request that the running task works for."""


def held(purse: Purse | None) -> AbstractContextManager[None]:
    """Inside, calls are made from ``purse`` (``None``: from nobody's), tasks started inside too."""
    return _SAME if purse is current.get() else _held(purse)


_SAME: AbstractContextManager[None] = nullcontext()


@contextmanager
def _held(purse: Purse | None) -> Iterator[None]:
    token = current.set(purse)
    try:
        yield
    finally:
        current.reset(token)

"""Which request meets which fault: by turn, by path, by what it asks, or by a seeded coin.

Pure but for its own counting; the same requests in the same order meet the same faults.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from specroute.testing.exchange import Exchange, Fault, Request

TEXT_PATHS = ("/chat/completions", "/completions")


async def HEALTHY(exchange: Exchange) -> None:
    """No fault: the toy model's own answer."""
    async with exchange.answer() as answer:
        await exchange.relay(answer)


class On:
    """``fault`` for the requests that fit.

    ``path``: the end of the path (default: chat and completions); "" is any. ``when``: a further
    condition on the :class:`Request`. ``skip``: so many fitting requests pass first. ``times``: so
    many meet it (``None``: all that follow).
    """

    def __init__(
        self,
        fault: Fault,
        *,
        path: str | None = None,
        when: Callable[[Request], bool] | None = None,
        skip: int = 0,
        times: int | None = None,
    ) -> None:
        self.fault = fault
        self._path, self._when = path, when
        self._skip, self._times = skip, times

    def __repr__(self) -> str:
        return f"On({name_of(self.fault)!r}, path={self._path!r}, times={self._times!r})"

    def choose(self, request: Request) -> Fault | None:
        """The fault for ``request``, or ``None``: ask the next rule."""
        if not self._fits(request):
            return None
        if self._skip:
            self._skip -= 1
            return None
        if self._times is not None:
            if not self._times:
                return None
            self._times -= 1
        return self.fault

    def _fits(self, request: Request) -> bool:
        ends = TEXT_PATHS if self._path is None else self._path
        return request.path.endswith(ends) and (self._when is None or self._when(request))


class Sometimes:
    """One of ``faults`` for a ``share`` of the chat and completions requests, by a seeded coin."""

    def __init__(self, share: float, faults: Sequence[Fault], *, seed: int = 0) -> None:
        if not 0 <= share <= 1 or not faults:
            raise ValueError(f"expected a share from 0 to 1 and some faults, got {share!r}")
        self._share, self._faults, self._rng = share, tuple(faults), Random(seed)

    def choose(self, request: Request) -> Fault | None:
        """The fault for ``request``, or ``None``."""
        if not request.path.endswith(TEXT_PATHS) or self._rng.random() >= self._share:
            return None
        return self._rng.choice(self._faults)


Rule = Fault | On | Sometimes


class Script:
    """Rules in order: the first that gives a fault decides. A bare fault is for one request, the
    next that no earlier rule wants."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [r if isinstance(r, On | Sometimes) else On(r, times=1) for r in rules]
        self._lock = threading.Lock()

    def choose(self, request: Request) -> Fault:
        """What ``request`` meets; :func:`HEALTHY` where no rule wants it."""
        with self._lock:
            for rule in self._rules:
                fault = rule.choose(request)
                if fault is not None:
                    return fault
        return HEALTHY


def name_of(fault: Fault) -> str | None:
    """What a fault is called in :attr:`Request.fault`."""
    if fault is HEALTHY:
        return None
    return str(getattr(fault, "name", None) or getattr(fault, "__name__", type(fault).__name__))

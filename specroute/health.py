"""How the deployments are: which cool, which broke, whom a request had better ask.

A deployment is a model at a provider's address. Watches every call as a gate and remembers what
came of it, whatever config is in force; sends nothing and holds nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specroute.config import ProviderConfig
from specroute.errors import DeadlineExceeded
from specroute.http import faults
from specroute.http.breaker import Breaker, State
from specroute.http.cooling import cooling
from specroute.http.faults import Fault
from specroute.http.gate import Departure
from specroute.types import Usage

_ANSWERS = frozenset({"plain", "handover", "resume", "lane", "draft"})
"""Purposes whose failures speak of the deployment; a scoring call may fail alone."""
_MOST = 4096


@dataclass(slots=True)
class Deployment:
    """What is known of one. Times are the monotonic clock's."""

    breaker: Breaker = field(default_factory=Breaker)
    cools_until: float = 0.0
    closed_until: float = 0.0
    """Until then a call would be in vain: the provider said so. At most ``cools_until``."""
    said: str = ""
    """By which word it cools."""
    refusals: int = 0
    """429s in a row."""

    def ready(self, now: float) -> bool:
        """Whether it is as good as any."""
        return now >= self.cools_until and self.breaker.allows(now)

    def wait(self, now: float) -> float:
        """Seconds until asking is not in vain."""
        return max(self.closed_until - now, 0.0)

    def why(self, now: float) -> str:
        """What is wrong with it, for notes and errors."""
        if now < self.cools_until:
            return f"cools for {self.cools_until - now:.1f} s ({self.said})"
        if not self.breaker.allows(now):
            return f"has failed lately (circuit {self.breaker.state})"
        return "is well"


class Health:
    """The deployments of a client; a :class:`~specroute.http.gate.Gate`.

    ``clock`` is monotonic, ``wall`` counts from the epoch (for headers that name a date).
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self.wall = wall
        self._known: dict[tuple[str, str, str], Deployment] = {}

    def of(self, provider: ProviderConfig, model: str) -> Deployment:
        """The deployment of ``model`` at that provider's address."""
        key = (provider.name, provider.base_url, model)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.pop(next(iter(self._known)))
            found = self._known[key] = Deployment()
        return found

    async def enter(self, departure: Departure) -> _Watched:
        """Watch one call; never waits and never refuses."""
        deployment = self.of(departure.provider, departure.model)
        answers = departure.purpose in _ANSWERS
        probe = answers and deployment.breaker.enter(self.clock())
        return _Watched(self, deployment, departure.provider, answers, probe)


class _Watched:
    """One call under way."""

    __slots__ = ("_answers", "_deployment", "_health", "_probe", "_provider", "_status")

    def __init__(
        self,
        health: Health,
        deployment: Deployment,
        provider: ProviderConfig,
        answers: bool,
        probe: bool,
    ) -> None:
        self._health = health
        self._deployment = deployment
        self._provider = provider
        self._answers = answers
        self._probe = probe
        self._status = 0

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        deployment, health = self._deployment, self._health
        if status == 429:
            deployment.refusals += 1
        asks = cooling(status, headers, health.wall(), deployment.refusals)
        if asks is not None:
            until = health.clock() + asks.seconds
            if until > deployment.cools_until:
                deployment.cools_until, deployment.said = until, asks.said
            if asks.asked:
                deployment.closed_until = max(deployment.closed_until, until)
        if status < 400:
            deployment.refusals = 0
            if self._answers:
                deployment.breaker.answered()

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        breaker, now = self._deployment.breaker, self._health.clock()
        fault = faults.of_status(self._status) if self._status >= 400 else None
        if error is not None:
            fault = faults.of_error(error)
        if not self._answers:
            if fault is Fault.CONNECT:
                breaker.failed(now)
        elif fault is Fault.REFUSED:
            if self._status in (401, 402):
                breaker.open(now)  # Every call will be refused.
        elif fault is not None and fault is not Fault.RATE:
            if _told(error, self._provider):
                breaker.failed(now)
        elif error is None and fault is None and 0 < self._status < 500:
            breaker.succeeded()
        if self._probe and breaker.state is State.HALF_OPEN:
            breaker.released(now)


def _told(error: BaseException | None, provider: ProviderConfig) -> bool:
    """A caller in a greater hurry than the config says nothing of the provider."""
    if not isinstance(error, DeadlineExceeded):
        return True
    own: float = getattr(provider.timeouts, error.which)
    return error.seconds >= min(own, 10.0)

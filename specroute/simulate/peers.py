"""Other controllers, re-made as policies from their papers and code, to be compared with.

Each always speculates where it can (that is what they do), with the first drafter. Knows no world.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from specroute.acceptance import Lossy
from specroute.candidates import Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.types import Method

START_K = 5


@dataclass
class Peer:
    """Speculates always, K by :meth:`next_k`."""

    lossy: Lossy | None = None

    @property
    def eager(self) -> bool:
        return True

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """The first drafter."""
        first = options.of(Method.SCORE)[0]
        return Plan(Method.SCORE, first.drafter, START_K, type(self).__name__)

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """K = 5, always."""
        return START_K


class FixedFive(Peer):
    """K = 5, whatever happens: the usual default."""


@dataclass
class Heuristic(Peer):
    """transformers' ``num_assistant_tokens_schedule="heuristic"``: all accepted, K += 2; else
    K = max(1, K - 1). K is kept from request to request (``heuristic_transient`` doesn't)."""

    _k: int = field(default=START_K)

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """From the last round alone."""
        if view.last is not None:
            k, accepted = view.last
            self._k = self._k + 2 if accepted == k else max(1, self._k - 1)
        return self._k


@dataclass
class Confidence(Peer):
    """transformers' dynamic speculation: draft until the drafter's own probability of its token
    falls below a threshold (0.4), at most 20 tokens. The token below it is still sent."""

    threshold: float = 0.4

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """The most; the threshold cuts it."""
        return 20


@dataclass
class Ema(Peer):
    """Steers K on an exponential mean of acceptance: above .8 four more, below .4 four fewer,
    between 4 and 64 (the rule of the proxy *tightwad*)."""

    decay: float = 0.9
    _ema: float = field(default=0.6)
    _k: int = field(default=START_K)

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """From the last round."""
        if view.last is not None:
            k, accepted = view.last
            self._ema = self.decay * self._ema + (1 - self.decay) * accepted / max(k, 1)
            if self._ema > 0.8:
                self._k = min(64, self._k + 4)
            elif self._ema < 0.4:
                self._k = max(4, self._k - 4)
        return self._k


@dataclass
class Ucb(Peer):
    """UCB1 over K, K = 0 (plain) among the arms, on measured tokens per second: one arm a request
    (BanditSpec, arXiv 2505.15141, with an arm that its authors leave out)."""

    arms: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    _count: dict[int, int] = field(default_factory=dict)
    _mean: dict[int, float] = field(default_factory=dict)
    _chosen: int = 0

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """The arm with the highest upper bound; each arm once first."""
        fresh = [arm for arm in self.arms if arm not in self._count]
        if fresh:
            self._chosen = fresh[0]
        else:
            total, top = sum(self._count.values()), max(self._mean.values())
            self._chosen = max(
                self.arms,
                key=lambda a: (
                    self._mean[a] / top + math.sqrt(0.5 * math.log(total) / self._count[a])
                ),
            )
        drafter = options.of(Method.SCORE)[0].drafter
        method = Method.SCORE if self._chosen else Method.PLAIN
        return Plan(method, drafter if self._chosen else None, self._chosen, "ucb")

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """The arm."""
        return self._chosen

    def learn(self, plan: Plan, tokens: int, seconds: float) -> None:
        """A request's goodput."""
        n = self._count[plan.k] = self._count.get(plan.k, 0) + 1
        mean = self._mean.get(plan.k, 0.0)
        self._mean[plan.k] = mean + (tokens / seconds - mean) / n

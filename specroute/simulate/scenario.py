"""What a simulated world is like: its targets, drafters and prices, and how they drift. Frozen.

Knows the assumptions, each a number with a name. Knows no requests and no chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ALPHAS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
ROUND_TRIPS_S = (0.001, 0.01, 0.03, 0.1, 0.4, 0.9)
TPOTS_S = (0.01, 0.02, 0.04, 0.1)
OUT_IN = (1.0, 4.0, 8.0)
CACHED: tuple[float | None, ...] = (0.02, 0.1, 0.5, None)
SHAPES = ("geometric", "heavy")
DRIFTS = ("none", "step", "slow", "daily")

USD_IN = 1e-6
"""Dollars per prompt token at the first target."""
VERIFY_PER_TOKEN_S = 0.0001
"""What scoring takes longer for each drafted token."""
STEP_AT = 100
"""The request at which a step change comes."""
SLOW = (100, 300)
"""The requests between which a slow drift happens."""
SHORT = 8
"""Tokens of a short answer."""
DAY = 200
"""Requests in a day."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """``worse``: how many times as often as the world's α says a token is refused."""

    name: str
    token_s: float
    read_s: float = 0.0
    """Seconds per prompt token before a request's first draft."""
    worse: float = 1.0
    temperature: float | None = None
    """What it draws at; ``None``: as the request's answer is drawn."""


DRAFTERS = (Drafter("model", 0.004, 2e-5), Drafter("lookup", 0.0003, 0.0, 1.8))
"""A small model on this machine, and an n-gram look-up: far quicker, more often wrong."""


@dataclass(frozen=True, slots=True)
class Target:
    """A second target is one that the policy may choose in place of the first."""

    name: str
    r: float = 1.0
    """Factors on the scenario's R, TPOT and prices."""
    tpot: float = 1.0
    price: float = 1.0
    worse: float = 1.0


FIRST = Target("sim:first")
SECOND = Target("sim:second", r=1.5, tpot=0.7, price=1.25, worse=1.3)
"""Streams faster, is farther away and dearer, and agrees less with the drafts."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cell of the grid."""

    alpha: float = 0.8
    """P(a drafted token is accepted), over all tokens, for the drafter ``model``."""
    r: float = 0.03
    """Seconds of one more request."""
    tpot: float = 0.04
    shape: str = "geometric"
    """``geometric``: tokens are independent. ``heavy``: half the chance of success at a round's
    first token, more at those after an accepted one (a heavy head), and requests that differ."""
    out_in: float = 4.0
    """Price of an output token over an input token's."""
    cached: float | None = 0.1
    """Price of a cached prompt token over a fresh one's; ``None``: the server caches nothing."""
    drift: str = "none"
    steps: str = "r"
    """What a step or a slow drift changes: ``r`` or ``alpha``."""
    interchangeable: bool = False
    """The policy may choose ``SECOND``."""
    shadow: bool = True
    """Plain answers are scored by the drafters afterwards."""
    seed: int = 1
    requests: int = 400
    tokens: int = 300
    """Of each answer,"""
    short: float = 0.0
    """but for this share of them, which have ``SHORT``."""
    classes: int = 1
    """Traffic classes that requests belong to in turn; alike, but nobody knows that."""
    new_at: int = 0
    """From this request on all are of another class (0: never),"""
    new_alpha: float = 0.0
    """which has this α."""

    @property
    def targets(self) -> tuple[Target, ...]:
        return (FIRST, SECOND) if self.interchangeable else (FIRST,)

    def alpha_at(self, i: int) -> float:
        """α at request i."""
        if 0 < self.new_at <= i:
            return self.new_alpha
        if self.drift in ("step", "slow") and self.steps == "alpha":
            return self.alpha + (_opposite(ALPHAS, self.alpha) - self.alpha) * self._gone(i)
        return self.alpha

    def r_at(self, i: int) -> float:
        """R at request i. A step or slow drift goes to the value half the list away."""
        if self.drift == "daily":
            return self.r * self._hour(i)
        if self.drift in ("step", "slow") and self.steps == "r":
            to = _opposite(ROUND_TRIPS_S, self.r)
            return float(self.r * (to / self.r) ** self._gone(i))
        return self.r

    def tpot_at(self, i: int) -> float:
        """TPOT at request i: a busy server is slow in both."""
        return self.tpot * self._hour(i) if self.drift == "daily" else self.tpot

    def _gone(self, i: int) -> float:
        """The share of the way that the drift has gone."""
        if self.drift == "step":
            return float(i >= STEP_AT)
        start, end = SLOW
        return min(1.0, max(0.0, (i - start) / (end - start)))

    def _hour(self, i: int) -> float:
        return 1 + 0.5 * math.sin(2 * math.pi * i / DAY)

    @property
    def title(self) -> str:
        cached = "-" if self.cached is None else f"{self.cached:g}"
        drift = self.drift if self.drift in ("none", "daily") else f"{self.drift} {self.steps}"
        return (
            f"α={self.alpha:g} R={self.r * 1e3:g} TPOT={self.tpot * 1e3:g} {self.shape} "
            f"out/in={self.out_in:g} cached={cached} drift={drift}"
            f"{' two targets' if self.interchangeable else ''}{'' if self.shadow else ' no shadow'}"
        )


def _opposite(values: tuple[float, ...], value: float) -> float:
    nearest = min(range(len(values)), key=lambda i: abs(values[i] - value))
    return values[(nearest + len(values) // 2) % len(values)]

"""What speculation has won or lost against plain so far: how much may be risked on learning more.

A token bucket in the objective's seconds. Every request pays a small share of its plain price in,
wins pay in, losses are paid out of it, and it never holds more than a few requests' worth. So
however wrong a plan's figures are, and however often they turn out wrong, the loss against plain
stays within that share of all that was spent, and a few requests. A second bucket, in dollars, does
the same for ``max_cost_ratio``. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CAP = 1.5
"""What the bucket holds at most: so many plain requests;"""
START = 0.5
"""and at first."""

Key = tuple[str | None, str, str | None]
"""A plan's target, method and drafter."""


@dataclass(frozen=True, slots=True)
class Settled:
    """One request that has ended: what it took in J and dollars, and what plain would have."""

    key: Key
    j: float
    plain_j: float
    dollars: float | None = None
    plain_dollars: float | None = None
    allowed: float = 0.0
    """Of plain's dollars, how many times it may cost; 0: no limit."""
    plain: bool = False
    """It was a plain call to its own target,"""
    yardstick: bool = False
    """only to keep plain's pace known."""
    strays: float = 0.0
    """J expected beyond the best plan's."""


@dataclass(frozen=True, slots=True)
class Account:
    """One traffic class's account, in seconds of J."""

    allowance: float | None = None
    """What may still be lost; ``None`` before anything was settled. Below 0 nothing but plain is
    chosen, until it has filled again."""
    dollars: float | None = None
    """Dollars that were allowed and not spent; ``None`` as above."""
    spent: float = 0.0
    """All that was spent;"""
    yardstick: float = 0.0
    """what of it on plain calls where speculation pays,"""
    strayed: float = 0.0
    """and what of it, as expected, beyond the best plans."""
    last: Key | None = None
    """What was done last."""
    trying: bool = False
    """Another request of the class is trying a plan out right now."""

    def under_way(self, tried: bool, yardstick: bool, strays: bool) -> Account:
        """While other requests that were planned so haven't ended: what they will have lost isn't
        known yet, so nothing is tried, timed or strayed to twice at a time."""
        return replace(
            self,
            trying=tried,
            yardstick=math.inf if yardstick else self.yardstick,
            strayed=math.inf if strays else self.strayed,
        )

    def risk(self, plain_j: float) -> float:
        """What may be lost now, where a plain request costs ``plain_j``."""
        return START * plain_j if self.allowance is None else self.allowance

    def purse(self, plain_dollars: float) -> float:
        """Dollars that may be spent beyond plain's now."""
        return START * plain_dollars if self.dollars is None else self.dollars

    def settle(self, ended: Settled, share: float) -> Account:
        """The account after a request; ``share`` of its plain price is paid in."""
        won = 0.0 if ended.plain else ended.plain_j - ended.j
        full = CAP * ended.plain_j
        allowance = min(full, self.risk(ended.plain_j) + share * ended.plain_j + won)
        dollars, plain = self.dollars, ended.plain_dollars
        if ended.allowed and ended.dollars is not None and plain is not None:
            left = ended.allowed * plain - (plain if ended.plain else ended.dollars)
            dollars = min(CAP * plain, self.purse(plain) + left)
        yardstick = self.yardstick + (ended.j if ended.yardstick else 0.0)
        strayed = self.strayed + ended.strays
        return Account(allowance, dollars, self.spent + ended.j, yardstick, strayed, ended.key)

"""What speculation has won or lost against plain so far: how much may be risked on learning more.

A token bucket in the objective's seconds. Every request pays a small share of its plain price in,
the first ones more of it, wins pay in, losses are paid out of it, and it never holds more than a
few requests' worth. So however wrong a plan's figures are, and however often they turn out wrong,
the loss against plain stays within a small share of what was spent until then, and what one request
loses beyond its forecast. A second bucket, in dollars, does the same for ``max_cost_ratio``. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CAP = 1.5
"""What the bucket holds at most: so many plain requests."""
EARLY = 3.0
"""How many times the share the first requests pay in (of dollars, one and a half),"""
LENT = 0.5
"""until they have paid so many plain requests more than the others do."""

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

    allowance: float = 0.0
    """What may still be lost. Below 0 nothing but plain is chosen, until it has filled again."""
    dollars: float = 0.0
    """Dollars that were allowed and not spent."""
    lent: float = 0.0
    """What the first requests have paid in beyond the usual share, in plain requests."""
    spent: float = 0.0
    """All that was spent;"""
    yardstick: float = 0.0
    """what of it on plain calls where speculation pays,"""
    strayed: float = 0.0
    """what of it, as expected, beyond the best plans,"""
    timed: float = 0.0
    """and beyond them on plain calls that may turn out the best."""
    last: Key | None = None
    """What was done last."""
    trying: str = ""
    """Why nothing may be tried out right now, in words; empty: it may."""

    def under_way(self, tried: bool, yardstick: bool, strays: bool) -> Account:
        """While other requests that were planned so haven't ended: what they will have lost isn't
        known yet, so nothing is tried, timed or strayed to twice at a time."""
        return replace(
            self,
            trying="another request of its class does so" if tried else "",
            yardstick=math.inf if yardstick else self.yardstick,
            strayed=math.inf if strays else self.strayed,
            timed=math.inf if strays else self.timed,
        )

    def less(self, j: float, dollars: float) -> Account:
        """Without what a trial may have lost that isn't entered yet."""
        return replace(self, allowance=self.allowance - j, dollars=self.dollars - dollars)

    def settle(self, ended: Settled, share: float) -> Account:
        """The account after a request; ``share`` of its plain price is paid in."""
        early = min((EARLY - 1) * share, LENT - self.lent)
        won = 0.0 if ended.plain else ended.plain_j - ended.j
        paid = (share + early) * ended.plain_j
        dollars, plain = self.dollars, ended.plain_dollars
        if ended.allowed and ended.dollars is not None and plain is not None:
            left = (ended.allowed + early / 4) * plain - (plain if ended.plain else ended.dollars)
            dollars = min(CAP * plain, dollars + left)
        return Account(
            min(CAP * ended.plain_j, self.allowance + paid + won),
            dollars,
            self.lent + early,
            self.spent + ended.j,
            self.yardstick + (ended.j if ended.yardstick else 0.0),
            self.strayed + (0.0 if ended.plain else ended.strays),
            self.timed + (ended.strays if ended.plain else 0.0),
            ended.key,
        )

"""What may be risked on exploring, kept together: the accounts of all classes, and who may try.

An account's changes are sums, so they are told and added in any order. Trying a plan out, timing
plain and straying from the best plan are one worker's at a time in a class: whoever has the leave
for it, which it keeps while it makes plans there. Knows no Redis and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from specroute.policy.account import CAP, LENT, Account

MOST_UNTOLD = 4096
"""Classes whose changes wait to be told."""
MOST_WANTED = 256
"""Leaves that are asked for at once."""

LEAVE_S = 20.0
"""How long a leave lasts unless it is renewed."""
RENEWED_S = 10.0
"""It is asked for again where less than that is left,"""
KEPT_S = 600.0
"""as long as this client has made a plan in the class within that time: requests of rare classes
come minutes apart."""

HELD = "another worker has its class's leave to explore"
ASKED = "its class's leave to explore has been asked for and isn't here yet"
"""Why nothing is tried."""

Key = tuple[str, str, str]
"""Policy, target and traffic class, each by its name."""


class Leave(Protocol):
    """Who may explore in a class: one worker at a time."""

    def withheld(self, key: Key) -> str:
        """Why this worker may not now, in words; empty: it may. Waits for nothing."""
        ...

    def exploring(self, key: Key) -> Callable[[object], None]:
        """It does, until what is returned is called."""
        ...


class Alone:
    """Nobody else explores."""

    def withheld(self, key: Key) -> str:
        return ""

    def exploring(self, key: Key) -> Callable[[object], None]:
        return lambda _: None


@dataclass(frozen=True, slots=True)
class Change:
    """By how much accounts have changed, in J and dollars; the sums of any number of requests."""

    allowance: float
    spent: float
    yardstick: float
    strayed: float
    timed: float
    lent: float
    plain_j: float
    """J of a plain request, of the largest of them."""
    dollars: float | None = None
    plain_dollars: float | None = None

    @classmethod
    def between(
        cls,
        before: Account,
        after: Account,
        plain_j: float,
        plain_dollars: float | None,
        lost: float = inf,
    ) -> Change:
        """What one request, whose plain call would have cost so much, has changed. ``lost``: J that
        it took beyond that. Where the account falls by more, it held more than it may after so
        short a request: nothing was lost, and whoever is told has its own bound."""
        dollars = None
        if plain_dollars is not None:
            dollars = after.dollars - before.dollars
        return cls(
            max(after.allowance - before.allowance, -lost),
            after.spent - before.spent,
            after.yardstick - before.yardstick,
            after.strayed - before.strayed,
            after.timed - before.timed,
            after.lent - before.lent,
            plain_j,
            dollars,
            plain_dollars,
        )

    def plus(self, later: Change) -> Change:
        """Both."""
        dollars, plain_dollars = later.dollars, later.plain_dollars
        if self.dollars is not None:
            dollars = self.dollars + (dollars or 0.0)
            plain_dollars = self.plain_dollars if plain_dollars is None else plain_dollars
        return Change(
            self.allowance + later.allowance,
            self.spent + later.spent,
            self.yardstick + later.yardstick,
            self.strayed + later.strayed,
            self.timed + later.timed,
            self.lent + later.lent,
            max(self.plain_j, later.plain_j),
            dollars,
            plain_dollars,
        )

    def of(self, account: Account) -> Account:
        """The account after it."""
        allowance = min(CAP * self.plain_j, account.allowance + self.allowance)
        dollars = account.dollars
        if self.dollars is not None and self.plain_dollars is not None:
            most = CAP * self.plain_dollars
            dollars = min(most, account.dollars + self.dollars)
        return replace(
            account,
            allowance=allowance,
            dollars=dollars,
            spent=account.spent + self.spent,
            yardstick=account.yardstick + self.yardstick,
            strayed=account.strayed + self.strayed,
            timed=account.timed + self.timed,
            lent=min(LENT, account.lent + self.lent),
        )

    def row(self) -> list[float | None]:
        """As JSON values."""
        return [
            self.allowance,
            self.spent,
            self.yardstick,
            self.strayed,
            self.timed,
            self.lent,
            self.plain_j,
            self.dollars,
            self.plain_dollars,
        ]

    @classmethod
    def read(cls, row: list[Any]) -> Change:
        """From JSON values; ``ValueError`` or ``TypeError`` for others."""
        *sums, dollars, plain_dollars = [None if v is None else float(v) for v in row]
        if not all(v is None or abs(v) < inf for v in (*sums, dollars, plain_dollars)):
            raise ValueError("a sum without end")
        allowance, spent, yardstick, strayed, timed, lent, plain_j = sums
        return cls(
            allowance or 0.0,
            spent or 0.0,
            yardstick or 0.0,
            strayed or 0.0,
            timed or 0.0,
            lent or 0.0,
            plain_j or 0.0,
            dollars,
            plain_dollars,
        )


class Accounts:
    """All accounts of a client, by policy; and what of their changes nobody else knows yet.

    ``telling``: whether there is anybody to tell.
    """

    def __init__(self, telling: bool = False) -> None:
        self._by_policy: dict[str, dict[tuple[str, str], Account]] = {}
        self._telling = telling
        self._untold: dict[Key, Change] = {}

    def of(self, policy: str) -> dict[tuple[str, str], Account]:
        """One policy's, by target and class."""
        return self._by_policy.setdefault(policy, {})

    def settled(self, policy: str, key: tuple[str, str], change: Change) -> None:
        """A request of this client's has changed one."""
        if not self._telling:
            return
        whole = (policy, *key)
        before = self._untold.pop(whole, None)
        self._untold[whole] = change if before is None else before.plus(change)
        if len(self._untold) > MOST_UNTOLD:
            self._untold.pop(next(iter(self._untold)))

    def untold(self) -> dict[Key, Change]:
        """What nobody knows yet, handed over."""
        found, self._untold = self._untold, {}
        return found

    def hear(self, key: Key, change: Change) -> None:
        """Other workers' requests have changed one."""
        accounts = self.of(key[0])
        accounts[key[1:]] = change.of(accounts.get(key[1:], Account()))

    def dump(self) -> list[tuple[Key, Account]]:
        return [
            ((policy, *key), account)
            for policy, accounts in self._by_policy.items()
            for key, account in accounts.items()
        ]

    def load(self, key: Key, account: Account) -> None:
        """As others have it, and what of this client's they don't know yet."""
        untold = self._untold.get(key)
        self.of(key[0])[key[1:]] = account if untold is None else untold.of(account)


class Leaves:
    """The leaves that this worker has. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wanted: dict[Key, None] = {}
        self._until: dict[Key, float] = {}
        self._planned: dict[Key, float] = {}
        """When each was last asked after."""
        self._refused: dict[Key, None] = {}
        """Those that another worker had."""
        self._exploring: Counter[Key] = Counter()

    def withheld(self, key: Key) -> str:
        """Why it isn't this worker's now; empty: it is. It is asked for where it isn't."""
        now = self._clock()
        left = self._until.get(key, -inf) - now
        if left > 0:
            self._planned[key] = now
        elif len(self._wanted) < MOST_WANTED:
            self._wanted[key] = None
        if left > 0:
            return ""
        return HELD if key in self._refused else ASKED

    def exploring(self, key: Key) -> Callable[[object], None]:
        """It is kept until what is returned is called."""
        self._exploring[key] += 1

        def end(_: object) -> None:
            self._exploring[key] -= 1
            if self._exploring[key] <= 0:
                del self._exploring[key]

        return end

    def wanted(self) -> list[Key]:
        """Those to ask for now: new ones, and those of which little is left."""
        found, self._wanted = self._wanted, {}
        now = self._clock()
        for key, until in self._until.items():
            used = key in self._exploring or now - self._planned[key] < KEPT_S
            if used and until - now < RENEWED_S and len(found) < MOST_WANTED:
                found[key] = None
        return list(found)

    def given(self, keys: list[Key], until: float, refused: Sequence[Key] = ()) -> None:
        """These are this worker's until then; those ``refused`` are another's."""
        now = self._clock()
        for key in refused:
            self._refused[key] = None
            if len(self._refused) > MOST_UNTOLD:
                del self._refused[next(iter(self._refused))]
        for key in keys:
            self._refused.pop(key, None)
            self._planned.setdefault(key, now)
            self._until[key] = until
        for key in [key for key, end in self._until.items() if end <= now]:
            del self._until[key]
            self._planned.pop(key, None)

    def lost(self) -> None:
        """None is any more."""
        self._until.clear()
        self._planned.clear()
        self._refused.clear()

"""What a policy is: two pure functions over frozen figures. It can't reach the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specroute.candidates import Candidates
from specroute.measure import Acceptance, Snapshot
from specroute.types import Method


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be done, and why, in one sentence. ``k`` is the first round's K."""

    method: Method
    drafter: str | None
    k: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundView:
    """One request in the middle of speculating."""

    rounds: int
    committed: int
    """Tokens of the answer so far."""
    remaining: int | None
    """Tokens left of ``max_tokens``."""
    own: Acceptance
    """This request's own rounds."""
    verify_s: float | None
    """Mean of this request's own scoring requests."""
    draft_s: float | None
    """Mean per drafted token in this request."""


class Policy(Protocol):
    """``snapshot(drafter)`` gives the figures for a drafter at the request's target and class."""

    def plan(self, options: Candidates, snapshot: Callable[[str], Snapshot]) -> Plan:
        """Choose a plan. ``plain`` is always among the options."""
        ...

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """Tokens to draft in the next round; 0 hands over to the plain stream."""
        ...

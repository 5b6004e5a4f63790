"""``fixed``: the same method and K whatever was measured. The yardstick for adaptive policies."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specroute.acceptance import Lossy
from specroute.candidates import Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.types import Method

_WHOLE = (Method.PREDICT, Method.CASCADE, Method.JUDGE, Method.RACE)
"""Methods whose draft is of the whole answer."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """``method`` with ``num_speculative_tokens`` (K) a round; the first configured draft that can.

    ``max_rounds`` > 0 hands over to the plain stream after so many rounds.
    """

    method: Method = Method.SCORE
    num_speculative_tokens: int = 4
    max_rounds: int = 0
    lossy: Lossy | None = None
    """The lossy acceptance rule, where one was asked for."""
    loose: bool = False
    """Lanes may follow words that only resemble the draft's."""
    rounds_in_flight: int = 1
    """In ``score``: rounds that are under way at a time."""
    lanes: int = 3
    """In ``prefix``: streams beside the plain one."""
    predicted_tokens: int = 2048
    """In ``predict``, ``cascade``, ``judge`` and ``race``: the longest draft of the answer."""
    min_accept: float = 0.7
    """In ``judge`` and ``race``: the share of the draft that must be found good."""
    hedge: float = 0.05
    """In ``hedge``: the share of requests that a second one may be sent for."""

    @property
    def eager(self) -> bool:
        """The caller insists: a target is calibrated before its first request, not beside it."""
        return True

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """The configured method if the target and the request allow it, else plain."""
        if self.method is Method.PLAIN or self.num_speculative_tokens == 0:
            return Plan(Method.PLAIN, None, 0, "the policy 'fixed' is set to plain")
        able = options.of(self.method)
        if not able:
            return Plan(Method.PLAIN, None, 0, options.why_not(self.method))
        k = self.num_speculative_tokens
        if self.method in _WHOLE:
            k = self.predicted_tokens
        return Plan(
            self.method,
            able[0].drafter,
            k,
            f"the policy 'fixed' asks for {self.method} with K = {k}",
            lanes=self.lanes,
            chunk=k,
            depth=self.rounds_in_flight,
        )

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """K, until ``max_rounds``."""
        if self.max_rounds and view.rounds >= self.max_rounds:
            return 0
        return self.num_speculative_tokens

"""A policy of somebody's own, wrong in one way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from specroute.candidates import Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.types import Method


@dataclass
class Strange:
    """``does``: what is wrong with it; ``k``: of each round."""

    does: str = ""
    k: Any = 4
    lossy: None = None

    @property
    def eager(self) -> bool:
        return True

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Any:
        if self.does == "plan raises":
            raise ValueError("no plan")
        plans: dict[str, Any] = {
            "plan is None": None,
            "another draft": Plan(Method.SCORE, "nobody", 4, ""),
            "another target": Plan(Method.SCORE, "table", 4, "", target="lab:other"),
            "another method": Plan(Method.RACE, "table", 4, ""),
            "no method": Plan("warp", "table", 4, ""),  # type: ignore[arg-type]
            "plan of K = -4": Plan(Method.SCORE, "table", -4, ""),
            "plan of K = 2.5": Plan(Method.SCORE, "table", 2.5, ""),  # type: ignore[arg-type]
        }
        return plans.get(self.does, Plan(Method.SCORE, "table", 4, "always"))

    def next_k(self, view: RoundView, snapshot: Snapshot) -> Any:
        if self.does == "K raises" or (self.does == "K raises later" and view.rounds > 1):
            raise ValueError("no K")
        return self.k

    def settle(self, account: Any, plan: Any, spent: Any, plain: Any) -> Any:
        if self.does == "settle raises":
            raise ValueError("no account")
        return account

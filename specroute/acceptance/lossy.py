"""Two rules that accept more than the target would say: ``ratio`` and ``typical``. Heuristic both.

Knows p as far as it is visible and the draft's q. Deliberately promises nothing about the answer's
distribution: they are for callers who asked for speed over likeness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specroute.acceptance.evidence import Evidence
from specroute.acceptance.rejection import Distribution


@dataclass(frozen=True, slots=True)
class Ratio:
    """Accept while p(x) >= τ·q(x), or p(x) >= τ·max p for a draft without q.

    The lenience of Leviathan et al. (arXiv 2211.17192, appendix A.5) without its coin.
    """

    tau: float

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau is {self.tau!r}, expected above 0, at most 1")

    def accepts(self, x: int, seen: Evidence, q: Distribution | None) -> bool:
        """Whether x stands. p is what the server samples from where that is known, else raw."""
        return seen.probability(x) >= self.tau * (seen.highest() if q is None else q[x])


@dataclass(frozen=True, slots=True)
class Typical:
    """Accept while p(x) > min(ε, δ·exp(-H(p))): Medusa's typical acceptance (arXiv 2401.10774,
    section 2.3.1), its code's defaults.

    With a tail, H is bounded below by counting each hidden token as likely as the least visible
    one, so that nothing is accepted that the whole of p would refuse.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        if not (0 < self.epsilon <= 1 and self.delta > 0):
            raise ValueError(f"epsilon, delta are {self.epsilon!r}, {self.delta!r}")

    def accepts(self, x: int, seen: Evidence, q: Distribution | None) -> bool:
        """Whether x stands; q is not looked at."""
        bound = min(self.epsilon, self.delta * math.exp(-seen.entropy()))
        return seen.probability(x) > bound


Lossy = Ratio | Typical

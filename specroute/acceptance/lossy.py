"""Rules that accept more than the target would say: ``ratio``, ``typical`` and, for whole drafts,
``mean_logprob``. Heuristic all of them.

Knows p as far as it is visible and the draft's q. Deliberately promises nothing about the answer's
distribution: they are for callers who asked for speed over likeness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specroute.acceptance.evidence import Evidence
from specroute.acceptance.rejection import Distribution


@dataclass(frozen=True, slots=True)
class Ratio:
    """Accept while p(x) >= τ·q(x), or p(x) >= τ·max p for a draft without q.

    The lenience of Leviathan et al. (arXiv 2211.17192, appendix A.5) without its coin.
    """

    tau: float
    agreement: float | None = None
    """The share of whole drafts whose kept part is expected to be what the target would have said
    itself, at least; ``None``: not calibrated."""

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau is {self.tau!r}, expected above 0, at most 1")

    def __str__(self) -> str:
        return f"ratio({self.tau:g}){_expected(self.agreement)}"

    def keeps(self, evidence: Sequence[tuple[float, float]]) -> int:
        """How many tokens from the start stand, of a whole draft: each one's log p and the log of
        what it is compared with."""
        floor = math.log(self.tau)
        refused = (i for i, (p, other) in enumerate(evidence) if p < floor + other)
        return next(refused, len(evidence))

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


@dataclass(frozen=True, slots=True)
class MeanLogprob:
    """Of a whole draft, keep the longest beginning whose mean log p is at least ``threshold``.

    One unlikely token is forgiven where those before it were likely: it asks how sure the target
    is of the text, as model cascades do (Gupta et al., arXiv 2404.10136), not of each token.
    """

    threshold: float
    """Nats per token, at most 0."""
    agreement: float | None = None
    """As in :class:`Ratio`."""

    def __post_init__(self) -> None:
        if not self.threshold <= 0:
            raise ValueError(f"the threshold is {self.threshold!r}, expected at most 0")

    def __str__(self) -> str:
        return f"mean_logprob({self.threshold:g}){_expected(self.agreement)}"

    def keeps(self, evidence: Sequence[tuple[float, float]]) -> int:
        """As :meth:`Ratio.keeps`; only each token's own log p is looked at."""
        total, kept = 0.0, 0
        for i, (p, _) in enumerate(evidence, start=1):
            total += p
            if total >= self.threshold * i - 1e-12:
                kept = i
        return kept


Lossy = Ratio | Typical | MeanLogprob


def _expected(agreement: float | None) -> str:
    return "" if agreement is None else f", expected agreement at least {agreement:.0%}"

"""What is known of p at one drafted token's place, in the forms that the rules need.

Knows raw logprobs; deliberately not which rule will be applied to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specroute.acceptance.envelope import Envelope
from specroute.acceptance.logprobs import checked
from specroute.acceptance.sampling import Sampling
from specroute.acceptance.visibility import visible


class Sees(StrEnum):
    """How much of p an API shows at a position, from least to most."""

    NOTHING = "nothing"
    DRAFTED = "drafted"
    """The drafted token's raw logprob alone."""
    TOP = "top"
    """And the top N, which leave a tail that matters (at T = 0: the argmax)."""
    ALL = "all"
    """The top N show everything that the server may draw."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One position. The default knows nothing.

    ``logprob`` is the drafted token's, raw; ``p`` the whole distribution, where it is visible
    (:func:`~specroute.acceptance.visible`); ``shown`` the envelope, where a tail is hidden at
    T <= 1 without cuts; ``top`` the raw top N, ``tail`` the mass it leaves out.
    """

    logprob: float | None = None
    p: Mapping[int, float] | None = None
    shown: Envelope | None = None
    top: Sequence[tuple[int, float]] = ()
    tail: float = 1.0

    @property
    def sees(self) -> Sees:
        """How much this is."""
        if self.p is not None:
            return Sees.ALL
        if self.logprob is None:
            return Sees.NOTHING
        return Sees.TOP if self.top else Sees.DRAFTED

    def probability(self, x: int) -> float:
        """p(x) of the drafted token x, raw where p is not known."""
        if self.p is not None:
            return self.p.get(x, 0.0)
        return 0.0 if self.logprob is None else math.exp(self.logprob)

    def highest(self) -> float:
        """max p, raw where p is not known."""
        if self.p is not None:
            return max(self.p.values())
        return math.exp(self.top[0][1]) if self.top else 1.0

    def entropy(self) -> float:
        """H(p) in nats, or a lower bound of it where a tail is hidden."""
        if self.p is not None:
            return -math.fsum(v * math.log(v) for v in self.p.values() if v > 0)
        if not self.top:
            return 0.0
        seen = -math.fsum(math.exp(value) * value for _, value in self.top)
        return seen - self.tail * self.top[-1][1]

    @classmethod
    def of(
        cls,
        top: Sequence[tuple[int, float]],
        logprob: float | None,
        sampling: Sampling,
        n: int | None = None,
    ) -> Evidence:
        """Read one position: raw (id, logprob) pairs, possibly none, and the drafted token's own.

        ``n`` is the N that was asked for: servers append the drafted token where it is not among
        them, and what is known may not depend on which token was drafted. Raises ``ValueError``
        for what can't be logprobs.
        """
        if logprob is not None and (math.isnan(logprob) or logprob > 1e-4):
            raise ValueError(f"the drafted token's logprob is {logprob!r}, expected <= 0")
        if not top:
            return cls(logprob)
        ranked, tail = checked(top, n)
        p = visible(top, sampling, n)
        shown = None if p is not None else Envelope.of(top, sampling, n)
        return cls(logprob, p, shown, ranked, tail)

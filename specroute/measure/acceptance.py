"""How many drafted tokens pass, position by position: frozen evidence, and what follows from it.

Pure. Knows survival, right-censoring and posteriors; knows no keys, no clock and no policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from specroute.measure.estimate import Estimate, Z

MAX_K = 64
"""Positions beyond this share the last one's evidence."""
HOPE = 0.8
"""The rate assumed where nothing was seen."""
LEAST = 0.01
"""The lowest rate that is told from none."""
OTHERS = 8.0
"""Dispersion of what other classes have shown."""
DOUBT = 0.5
"""One over the variance of classes' hardness, about (:func:`hardness`)."""
STRENGTH = 8.0
"""Judged tokens that a prior counts as, at most."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Evidence on P(token k is accepted | the k-1 before it were), position by position.

    ``passed[k] / judged[k]`` is that conditional rate (1 - hazard) at position k, 0-based. A round
    that accepts all K says nothing about position K+1: right-censored by construction, since only
    judged positions count (the Kaplan-Meier estimator). Weights are discounted.
    """

    passed: tuple[float, ...] = ()
    judged: tuple[float, ...] = ()
    dispersion: float = 1.0
    """How much more the rate varies than independent tokens would: rounds of one answer resemble
    each other. Posteriors count the evidence divided by it."""
    of_others: bool = False
    """All of it is what other classes have shown: this one may be another matter altogether."""

    @property
    def weight(self) -> float:
        """Judged tokens behind it."""
        return sum(self.judged)

    @property
    def rate(self) -> float | None:
        """α̂, over all positions together."""
        judged = sum(self.judged)
        return sum(self.passed) / judged if judged else None

    def plus(self, other: Acceptance, weight: float = 1.0) -> Acceptance:
        """This evidence and ``weight`` times another's."""
        if not other.judged:
            return self
        passed = zip_longest(self.passed, other.passed, fillvalue=0.0)
        judged = zip_longest(self.judged, other.judged, fillvalue=0.0)
        return Acceptance(
            tuple([p + weight * q for p, q in passed]),
            tuple([n + weight * m for n, m in judged]),
            max(self.dispersion, other.dispersion),
        )

    def posterior(
        self,
        k: int,
        prior: Acceptance | None = None,
        *,
        default: float = HOPE,
        strength: float = STRENGTH,
    ) -> tuple[tuple[float, float], ...]:
        """(a, b) of a Beta distribution of the conditional rate at each of the first k positions.

        ``prior``: evidence from elsewhere, which counts as at most ``strength`` judged tokens a
        position. Two tokens at the rate over all positions (``default`` where there is no evidence
        at all) stand in for what a position lacks.
        """
        pooled = prior if prior is not None else NO_EVIDENCE
        seen = pooled if pooled.judged else self
        overall = _rate(sum(seen.passed), sum(seen.judged), default, 2.0)
        found = []
        for j in range(k):
            judged = _at(pooled.judged, j)
            base = _rate(_at(pooled.passed, j), judged, overall, 2.0)
            weight = min(strength, 2.0 + judged)
            own = _at(self.judged, j) / self.dispersion
            a = base * weight + _at(self.passed, j) / self.dispersion
            found.append((a, weight + own - a))
        return tuple(found)

    def survival(
        self,
        k: int,
        prior: Acceptance | None = None,
        *,
        default: float = HOPE,
        strength: float = STRENGTH,
    ) -> tuple[float, ...]:
        """S(1..k), S(j) = P(at least j tokens accepted): the posterior means' products."""
        survival, s = [], 1.0
        for a, b in self.posterior(k, prior, default=default, strength=strength):
            s *= a / (a + b)
            survival.append(s)
        return tuple(survival)

    def draw(
        self,
        k: int,
        rng: random.Random,
        prior: Acceptance | None = None,
        *,
        default: float = HOPE,
        strength: float = STRENGTH,
    ) -> tuple[float, ...]:
        """S(1..k) drawn from the posterior, for Thompson sampling."""
        survival, s = [], 1.0
        for a, b in self.posterior(k, prior, default=default, strength=strength):
            s *= rng.betavariate(a, b) if b > 0 else 1.0
            survival.append(s)
        return tuple(survival)

    def estimates(self, k: int, prior: Acceptance | None = None) -> tuple[Estimate, ...]:
        """S(1..k) with intervals, on the log scale by Greenwood's formula:
        var(ln S(j)) = Σ b / (a·(a + b)) over the positions up to j."""
        found, s, variance = [], 1.0, 0.0
        for j, (a, b) in enumerate(self.posterior(k, prior)):
            s *= a / (a + b)
            variance += b / (a * (a + b))
            reach = math.exp(Z * math.sqrt(variance))
            found.append(Estimate(s, s / reach, min(1.0, s * reach), _at(self.judged, j)))
        return tuple(found)


NO_EVIDENCE = Acceptance()


def hardness(own: Acceptance, rates: Iterable[float]) -> float:
    """λ of what ``own`` was judged on: how many times the hazard that ``rates`` promise, position
    by position. It is taken to be the same at all of them (proportional hazards), so that a few
    tokens at the first positions tell of those that were never got to: S(k) to the power λ.

    A gamma frailty of mean 1 (Vaupel, Manton and Stallard, Demography 1979): the posterior mean is
    (``DOUBT`` + hazard seen) / (``DOUBT`` + hazard promised).
    ``own.dispersion`` times as many tokens are needed to say as much.
    """
    promised, judged, passed = 0.0, 0.0, 0.0
    for n, p, rate in zip(own.judged, own.passed, rates, strict=False):
        judged, passed = judged + n, passed + p
        promised -= n * math.log(rate if rate > LEAST else LEAST)
    seen = judged * math.log((judged + 1.0) / (passed + 1.0))  # At least one passes, some day.
    spread = own.dispersion
    return (DOUBT + seen / spread) / (DOUBT + promised / spread)


def _at(values: tuple[float, ...], j: int) -> float:
    return values[j] if j < len(values) else 0.0


def _rate(passed: float, judged: float, prior: float, weight: float) -> float:
    return (passed + prior * weight) / (judged + weight)

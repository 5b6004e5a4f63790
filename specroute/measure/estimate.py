"""One figure with its interval, and one linear law whose value is such a figure. Frozen, pure.

Knows how sure a figure is and how to draw one from its uncertainty (Thompson sampling). Knows
nothing of how figures are gathered.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

Z = 1.645
"""Half-width of a 90 % interval, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and the interval that holds it with about 90 %; none of the three below 0."""

    mean: float
    low: float
    high: float
    weight: float = 0.0
    """The observations behind it, old ones counted for less."""

    @classmethod
    def exactly(cls, value: float) -> Estimate:
        """A figure without any doubt (a synthetic one)."""
        return cls(value, value, value, math.inf)

    @classmethod
    def around(
        cls, mean: float, deviation: float, weight: float, most: float = math.inf
    ) -> Estimate:
        """From the standard deviation *of the mean*; kept within 0 and ``most``."""
        half = Z * deviation
        return cls(mean, max(0.0, mean - half), min(most, mean + half), weight)

    @classmethod
    def of_rate(cls, a: float, b: float) -> Estimate:
        """The rate with the posterior Beta(a, b). Interval: Wilson's score interval for a of a + b,
        which stays within 0 and 1."""
        n = a + b
        rate, z2 = a / n, Z * Z
        middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
        half = Z * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return cls(rate, max(0.0, middle - half), min(1.0, middle + half), n)

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(self.mean * factor, self.low * factor, self.high * factor, self.weight)

    def draw(self, rng: random.Random) -> float:
        """One value from its uncertainty: normal with the interval's half-width on either side."""
        z = rng.gauss(0.0, 1.0)
        half = self.high - self.mean if z > 0 else self.mean - self.low
        return max(0.0, self.mean + z * half / Z)


Covariance = tuple[float, float, float, float, float, float]
"""Of three coefficients: the entries 00, 01, 02, 11, 12, 22."""


@dataclass(frozen=True, slots=True)
class Law:
    """``base + per_x·x + per_y·y``, seconds, with the coefficients' covariance.

    ``factor`` multiplies it: a traffic class's own pace against the law of its target. ``least``:
    no value falls below it, however far away x and y are from what was seen.
    """

    base: float
    per_x: float = 0.0
    per_y: float = 0.0
    covariance: Covariance = (0.0,) * 6
    weight: float = math.inf
    least: float = 0.0
    factor: Estimate = Estimate(1.0, 1.0, 1.0)

    def mean_at(self, x: float, y: float) -> float:
        """The mean at (x, y) alone."""
        return max(self.base + self.per_x * x + self.per_y * y, self.least) * self.factor.mean

    def at(self, x: float, y: float) -> Estimate:
        """The mean at (x, y), with the interval of that mean (not of one observation)."""
        c00, c01, c02, c11, c12, c22 = self.covariance
        variance = c00 + x * (2 * c01 + x * c11 + 2 * y * c12) + y * (2 * c02 + y * c22)
        factor = self.factor
        mean = self.mean_at(x, y)
        spread = mean * (factor.high - factor.low) / (2 * Z * factor.mean)
        half = Z * math.sqrt(max(variance, 0.0) * factor.mean**2 + spread**2)
        return Estimate(mean, mean - half if half < mean else 0.0, mean + half, self.weight)

"""Seconds as a linear law of two features, fitted online: discounted, robust, quick after a step.

Pure, no clock. Recursive least squares with exponential forgetting (in information form, so that
the prior on the slopes is never forgotten), residuals clipped as in Huber's M-estimator, and old
observations dropped when a CUSUM says that the law has changed. Each update solves a 3 by 3 system.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from specroute.measure.estimate import Estimate, Law
from specroute.measure.level import Drift, Scatter, clipped, like, standardised

KEPT = 8
"""Observations kept as they came, to start anew from after a step."""
_TINY = 1e-9
_ALIKE = 1e-9
"""The share of a feature's mean square that it varies by at least: less is rounding."""


class Regression:
    """``value = base + per_x·x + per_y·y``, slopes never below 0.

    ``units``: what a large x and y are. ``steep``: by how many seconds such an x or y may well
    change the value (the standard deviation of the slopes' prior around 0).
    """

    __slots__ = (
        "_a",
        "_b",
        "_decay",
        "_drift",
        "_law",
        "_mean",
        "_recent",
        "_scatter",
        "_steep",
        "_units",
        "epoch",
        "seen",
        "weight",
    )

    def __init__(
        self, units: tuple[float, float], steep: tuple[float, float], decay: float = 0.98
    ) -> None:
        self._units, self._steep, self._decay = units, steep, decay
        self._a = [0.0] * 6
        self._b = [0.0] * 3
        self._mean = [0.0] * 3
        """Weighted sums of the value, x and y, clipped values as they count."""
        self.weight = 0.0
        self._scatter = Scatter()
        self._drift = Drift()
        self._recent: deque[tuple[float, float, float, float]] = deque(maxlen=KEPT)
        self._law: Law | None = None
        self.epoch = 0
        """Changes of the law seen so far."""
        self.seen = 0
        """Observations so far."""

    def add(self, x: float, y: float, value: float, weight: float = 1.0) -> bool:
        """Take in one observation (value > 0); whether it showed that the law has changed."""
        value = max(value, _TINY)
        self.seen += 1
        self._recent.append((x, y, value, weight))
        law = self.law()
        if law is not None:
            expected = max(law.mean_at(x, y), _TINY)
            residual = math.log(value / expected)
            scale = self._scatter.value
            after = self._drift.add(standardised(residual, scale))
            self._scatter.add(residual)
            if after:
                self.epoch += 1
                since = list(self._recent)[-after:]
                self._clear()
                for seen, fits in zip(since, like([s[2] for s in since], scale), strict=True):
                    if fits:
                        self._take(*seen)
                return True
            value = expected * math.exp(clipped(residual, scale))
        self._take(x, y, value, weight)
        return False

    def start_anew(self) -> None:
        """What was seen no longer holds."""
        self.epoch += 1
        self._clear()

    def forget(self, share: float) -> None:
        """Let what was seen count for ``share`` of its weight."""
        self._a = [v * share for v in self._a]
        self._b = [v * share for v in self._b]
        self._mean = [v * share for v in self._mean]
        self.weight *= share
        self._law = None

    def _clear(self) -> None:
        self._a, self._b, self._mean = [0.0] * 6, [0.0] * 3, [0.0] * 3
        self.weight = 0.0
        self._law = None

    def _take(self, x: float, y: float, value: float, weight: float) -> None:
        u, v = x / self._units[0], y / self._units[1]
        d, a, b, m = self._decay, self._a, self._b, self._mean
        wu, wv = weight * u, weight * v
        a[0] = a[0] * d + weight
        a[1] = a[1] * d + wu
        a[2] = a[2] * d + wv
        a[3] = a[3] * d + wu * u
        a[4] = a[4] * d + wu * v
        a[5] = a[5] * d + wv * v
        b[0] = b[0] * d + weight * value
        b[1] = b[1] * d + wu * value
        b[2] = b[2] * d + wv * value
        m[0] = m[0] * d + weight * value
        m[1] = m[1] * d + weight * x
        m[2] = m[2] * d + weight * y
        self.weight = self.weight * d + weight
        self._law = None

    @property
    def mean(self) -> float | None:
        """The discounted mean value."""
        return self._mean[0] / self.weight if self.weight else None

    @property
    def ordinary(self) -> tuple[float, float]:
        """The discounted means of x and y."""
        return (self._mean[1] / self.weight, self._mean[2] / self.weight) if self.weight else (0, 0)

    def at_ordinary(self) -> Estimate | None:
        """The law's value at ordinary x and y."""
        law = self.law()
        return None if law is None else law.at(*self.ordinary)

    def law(self) -> Law | None:
        """The law as it stands; ``None`` before the first observation. Made anew after each."""
        if self._law is None and self.weight:
            self._law = self._solve()
        return self._law

    def _solve(self) -> Law:
        mean = self._mean[0] / self.weight
        noise = (self._scatter.value * mean) ** 2
        fixed = [noise / steep**2 for steep in self._steep]
        rigid = 1e12 * (self.weight + 1)
        theta, inverse = _solved(self._a, self._b, fixed)
        while True:
            below = [i for i in (1, 2) if theta[i] < 0 and fixed[i - 1] < rigid]
            if not below:
                break
            # Longer prompts and more load take no less time: that slope is held at 0, though it is
            # no better known for that (the covariance stays).
            fixed[min(below, key=lambda i: theta[i]) - 1] = rigid
            theta, _ = _solved(self._a, self._b, fixed)
        ux, uy = self._units
        units = (1.0, 1 / ux, 1 / uy, 1 / ux**2, 1 / (ux * uy), 1 / uy**2)
        c00, c01, c02, c11, c12, c22 = (
            entry * noise * unit for entry, unit in zip(inverse, units, strict=True)
        )
        covariance = (c00, c01, c02, c11, c12, c22)
        base, slope_x, slope_y = theta[0], max(theta[1], 0.0) / ux, max(theta[2], 0.0) / uy
        return Law(base, slope_x, slope_y, covariance, self.weight, 0.25 * mean)

    def dump(self) -> list[Any]:
        return [self._a, self._b, self._mean, self.weight, self._scatter.dump()]

    def load(self, data: Any, share: float) -> None:
        """Take over a dump, at ``share`` of its weight."""
        a, b, mean, weight, scatter = data
        self._a = [float(v) * share for v in a[:6]]
        self._b = [float(v) * share for v in b[:3]]
        self._mean = [float(v) * share for v in mean[:3]]
        self.weight = float(weight) * share
        self._scatter.load(scatter)
        self._law = None


def scaled(law: Law | None, factor: Estimate) -> Law | None:
    """A class's law."""
    if law is None:
        return None
    c = law.covariance
    return Law(law.base, law.per_x, law.per_y, c, law.weight, law.least, factor)


def _solved(
    a: list[float], b: list[float], ridge: list[float]
) -> tuple[tuple[float, float, float], tuple[float, float, float, float, float, float]]:
    """(coefficients, inverse) of the symmetric system with ``ridge`` on the slopes' diagonal."""
    a00, a01, a02, a11, a12, a22 = a
    a00 += 1e-12
    # The base is solved for last: what the features vary by is told apart from what they are, so
    # that like prompts, however long, leave no determinant of 0.
    mx, my = a01 / a00, a02 / a00
    xx = max(a11 - mx * a01, 0.0) + ridge[0] + _ALIKE * a11 + _TINY**2
    yy = max(a22 - my * a02, 0.0) + ridge[1] + _ALIKE * a22 + _TINY**2
    xy = a12 - mx * a02
    most = math.sqrt((xx - ridge[0]) * (yy - ridge[1]))
    xy = min(max(xy, -most), most)
    det = xx * yy - xy * xy
    i11, i12, i22 = yy / det, -xy / det, xx / det
    i01, i02 = -(mx * i11 + my * i12), -(mx * i12 + my * i22)
    i00 = 1 / a00 - mx * i01 - my * i02
    b0, b1, b2 = b
    bx, by = b1 - mx * b0, b2 - my * b0
    slope_x, slope_y = i11 * bx + i12 * by, i12 * bx + i22 * by
    theta = (b0 / a00 - mx * slope_x - my * slope_y, slope_x, slope_y)
    return theta, (i00, i01, i02, i11, i12, i22)

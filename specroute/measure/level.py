"""Estimators of one positive quantity: discounted, robust to single outliers, quick after a step.

Pure, no clock. Knows values in the order in which they came. ``Law``\\ s of two features are
``regression``'s matter, acceptance ``lending``'s.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from specroute.measure.estimate import Estimate

_SCALE_DECAY = 0.97
_NORMAL = math.sqrt(math.pi / 2)
_FIRST_SCALE, _FIRST_WEIGHT = 0.3, 3.0
"""The scatter assumed at first, and how many values that counts for."""
LEAST_SCALE = 0.03
MOST_LOG = 2.0
"""A residual counts as at most a factor of e² in the scatter."""


class Drift:
    """Whether values have left the level they had: Page's two-sided CUSUM (Biometrika 41, 1954).

    Fed with standardised residuals, clipped so that no single one can raise the alarm: three in a
    row far on one side do, or some twenty at one standard deviation.
    """

    CLIP, SLACK, ALARM = 4.0, 0.5, 10.0
    __slots__ = ("_down", "_falling", "_rising", "_up")

    def __init__(self) -> None:
        self._up = self._down = 0.0
        self._rising = self._falling = 0

    def add(self, z: float) -> int:
        """0, or, where this residual raises the alarm, how many values came after the step: those
        since the sum was last 0. The next one starts anew."""
        z = max(-self.CLIP, min(self.CLIP, z))
        self._up = max(0.0, self._up + z - self.SLACK)
        self._down = max(0.0, self._down - z - self.SLACK)
        self._rising = self._rising + 1 if self._up else 0
        self._falling = self._falling + 1 if self._down else 0
        if max(self._up, self._down) < self.ALARM:
            return 0
        since = self._rising if self._up > self._down else self._falling
        self._up = self._down = 0.0
        self._rising = self._falling = 0
        return since


class Scatter:
    """The robust relative spread of values around their estimate: the discounted mean absolute
    log-residual, as a standard deviation (times √(π/2), as for a normal distribution)."""

    __slots__ = ("_sum", "_weight")

    def __init__(self) -> None:
        self._sum = _FIRST_SCALE / _NORMAL * _FIRST_WEIGHT
        self._weight = _FIRST_WEIGHT

    def add(self, residual: float) -> None:
        self._sum = self._sum * _SCALE_DECAY + min(abs(residual), MOST_LOG)
        self._weight = self._weight * _SCALE_DECAY + 1.0

    @property
    def value(self) -> float:
        return max(LEAST_SCALE, _NORMAL * self._sum / self._weight)

    def dump(self) -> list[float]:
        return [self._sum, self._weight]

    def load(self, data: Any) -> None:
        self._sum, self._weight = float(data[0]), float(data[1])


def clipped(residual: float, scale: float) -> float:
    """A log-residual as far as it may pull on an estimate."""
    most = max(0.3, 4.0 * scale)
    return max(-most, min(most, residual))


def standardised(residual: float, scale: float) -> float:
    """A log-residual around the mean in standard deviations from where it is expected: the mean
    logarithm of log-normal values lies σ²/2 below the logarithm of their mean."""
    return residual / scale + min(scale, 1.0) / 2


def like(values: list[float], scale: float) -> list[bool]:
    """Which values belong to the level that the last three are at."""
    middle = sorted(values[-3:])[len(values[-3:]) // 2]
    most = max(0.5, 3.0 * scale)
    return [abs(math.log(value / middle)) <= most for value in values]


class Level:
    """The discounted mean of a positive quantity. A value far off counts as one four standard
    deviations away; several of them in a row are a new level, and the old one is forgotten."""

    KEPT = 8
    __slots__ = ("_decay", "_drift", "_estimate", "_recent", "_scatter", "_sum", "steps", "weight")

    def __init__(self, decay: float = 0.95) -> None:
        self._decay = decay
        self._estimate: Estimate | None = None
        self._sum = 0.0
        self.weight = 0.0
        self._scatter = Scatter()
        self._drift = Drift()
        self._recent: deque[tuple[float, float]] = deque(maxlen=self.KEPT)
        self.steps = 0
        """Changes of level seen so far."""

    def add(self, value: float, weight: float = 1.0) -> bool:
        """Take in one value (> 0); whether it showed that the level has changed."""
        value = max(value, 1e-9)
        self._estimate = None
        self._recent.append((value, weight))
        if not self.weight:
            self._sum, self.weight = value * weight, weight
            return False
        mean = self._sum / self.weight
        residual = math.log(value / mean)
        scale = self._scatter.value
        after = self._drift.add(standardised(residual, scale))
        self._scatter.add(residual)
        if after:
            self.steps += 1
            since = list(self._recent)[-after:]
            fits = like([v for v, _ in since], scale)
            since = [seen for seen, fit in zip(since, fits, strict=True) if fit]
            self._sum = sum(v * w for v, w in since)
            self.weight = sum(w for _, w in since)
            return True
        pulled = mean * math.exp(clipped(residual, scale))
        self._sum = self._sum * self._decay + pulled * weight
        self.weight = self.weight * self._decay + weight
        return False

    @property
    def value(self) -> float | None:
        return self._sum / self.weight if self.weight else None

    @property
    def scale(self) -> float:
        """Relative standard deviation of one value."""
        return self._scatter.value

    def estimate(self) -> Estimate | None:
        """The mean with its interval; ``None`` before the first value."""
        if self._estimate is None and self.weight:
            mean = self._sum / self.weight
            # Weights fall geometrically: about twice as many values as their sum are behind the
            # mean; successive ones resemble each other, so only the sum is counted.
            deviation = mean * self.scale / math.sqrt(self.weight)
            self._estimate = Estimate.around(mean, deviation, self.weight)
        return self._estimate

    def dump(self) -> list[Any]:
        return [self._sum, self.weight, self._scatter.dump()]

    def load(self, data: Any, share: float) -> None:
        """Take over a dump, at ``share`` of its weight."""
        self._sum, self.weight = float(data[0]) * share, float(data[1]) * share
        self._scatter.load(data[2])
        self._estimate = None


class Length(Level):
    """The discounted mean of answers' lengths. Short and long ones take turns (8 tokens, then 800):
    no run of either is a new level, and none is far off."""

    def add(self, value: float, weight: float = 1.0) -> bool:
        value = max(value, 1e-9)
        self._estimate = None
        if self.weight:
            self._scatter.add(math.log(value * self.weight / self._sum))
        self._sum = self._sum * self._decay + value * weight
        self.weight = self.weight * self._decay + weight
        return False


class Factor:
    """A class's own pace against its target's law: a level of ratios, drawn towards 1.

    Normal-normal shrinkage: without evidence 1 ± ``BETWEEN``, the spread between classes.
    """

    BETWEEN = 0.15
    __slots__ = ("_epoch", "_estimate", "_level")

    def __init__(self) -> None:
        self._level = Level(0.95)
        self._epoch = 0
        self._estimate: tuple[int, Estimate] | None = None

    def add(self, ratio: float, epoch: int, weight: float = 1.0) -> None:
        """``epoch``: how often the law itself has changed; a new one starts the factor anew."""
        if epoch != self._epoch:
            self._level, self._epoch = Level(0.95), epoch
        self._level.add(ratio, weight)
        self._estimate = None

    def estimate(self, epoch: int) -> Estimate:
        """As long as the law has changed ``epoch`` times."""
        if self._estimate is None or self._estimate[0] != epoch:
            self._estimate = (epoch, self._shrunk(epoch))
        return self._estimate[1]

    def _shrunk(self, epoch: int) -> Estimate:
        level = self._level if epoch == self._epoch else _NEVER
        prior = 1 / self.BETWEEN**2
        seen = level.weight / max(level.scale, 0.02) ** 2
        mean = (prior + seen * (level.value or 1.0)) / (prior + seen)
        return Estimate.around(mean, 1 / math.sqrt(prior + seen), level.weight)

    def dump(self) -> list[Any]:
        return [self._level.dump()]

    def load(self, data: Any, share: float) -> None:
        self._level.load(data[0], share)
        self._epoch = 0
        self._estimate = None


_NEVER = Level()


class Share:
    """A discounted rate of events, with Jeffreys' prior Beta(½, ½)."""

    __slots__ = ("_decay", "hits", "weight")

    def __init__(self, decay: float = 0.98) -> None:
        self._decay = decay
        self.hits = self.weight = 0.0

    def add(self, share: float, weight: float = 1.0) -> None:
        """``share``: 0 or 1 of an event, or a part."""
        self.hits = self.hits * self._decay + share * weight
        self.weight = self.weight * self._decay + weight

    def estimate(self) -> Estimate | None:
        """``None`` before the first event. The weight is that of the events alone."""
        if not self.weight:
            return None
        found = Estimate.of_rate(self.hits + 0.5, self.weight - self.hits + 0.5)
        return Estimate(found.mean, found.low, found.high, self.weight)

    def dump(self) -> list[float]:
        return [self.hits, self.weight]

    def load(self, data: Any, share: float) -> None:
        self.hits, self.weight = float(data[0]) * share, float(data[1]) * share


class Frequency:
    """Discounted events per opportunity, any number of them (a Poisson rate)."""

    __slots__ = ("_decay", "_events", "weight")

    def __init__(self, decay: float = 0.998) -> None:
        self._decay = decay
        self._events = self.weight = 0.0

    def add(self, events: float, opportunities: float) -> None:
        self._events = self._events * self._decay + events
        self.weight = self.weight * self._decay + opportunities

    def estimate(self) -> Estimate | None:
        """``None`` before the first opportunity."""
        if not self.weight:
            return None
        deviation = math.sqrt(self._events + 0.5) / self.weight
        return Estimate.around(self._events / self.weight, deviation, self.weight)

    def dump(self) -> list[float]:
        return [self._events, self.weight]

    def load(self, data: Any, share: float) -> None:
        self._events, self.weight = float(data[0]) * share, float(data[1]) * share


class Mean:
    """A discounted mean; ``None`` until something was seen. With ``most``, a value counts as at
    most that many times the mean so far: one stalled request shouldn't rule the next ones."""

    __slots__ = ("_decay", "_most", "_sum", "weight")

    def __init__(self, decay: float, most: float | None = None) -> None:
        self._decay = decay
        self._most = most
        self._sum = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        if self._most is not None and self.weight:
            value = min(value, self._most * self._sum / self.weight)
        self._sum = self._sum * self._decay + value * weight
        self.weight = self.weight * self._decay + weight

    @property
    def value(self) -> float | None:
        return self._sum / self.weight if self.weight else None

    def dump(self) -> list[float]:
        return [self._sum, self.weight]

    def load(self, data: Any, share: float) -> None:
        self._sum, self.weight = float(data[0]) * share, float(data[1]) * share

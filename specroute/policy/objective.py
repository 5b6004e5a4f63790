"""What a plan is judged by: J = seconds + dollars / usd_per_second, and the limits it must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a whole request is expected to take: seconds to its end, and dollars (``None``:
    prices are not known)."""

    seconds: float
    dollars: float | None = None

    def plus(self, other: Forecast) -> Forecast:
        """Both, one after the other."""
        known = self.dollars is not None and other.dollars is not None
        dollars = (self.dollars or 0.0) + (other.dollars or 0.0) if known else None
        return Forecast(self.seconds + other.seconds, dollars)

    def times(self, n: float) -> Forecast:
        """It ``n`` times over."""
        return Forecast(n * self.seconds, None if self.dollars is None else n * self.dollars)


@dataclass(frozen=True, slots=True)
class Objective:
    """The user's word on seconds and dollars. A ratio of 0 is no limit."""

    usd_per_second: float = 0.01
    """What a saved second is worth."""
    max_num_speculative_tokens: int = 64
    """The largest K of a round."""
    max_cost_ratio: float = 0.0
    """The most dollars against a plain call's,"""
    max_latency_ratio: float = 0.0
    """and the most seconds."""

    @property
    def lam(self) -> float:
        """λ = 1 / ``usd_per_second``: seconds that a dollar weighs."""
        return 1.0 / self.usd_per_second

    def weigh(self, usd: float | None) -> float:
        """Dollars as seconds. An unknown price can't be weighed: then seconds alone decide."""
        return 0.0 if usd is None else usd / self.usd_per_second

    def j(self, forecast: Forecast) -> float:
        """Seconds and dollars together, in seconds."""
        return forecast.seconds + self.weigh(forecast.dollars)

    def broken(self, forecast: Forecast, plain: Forecast) -> str | None:
        """The ratio that a plan would break, named; ``None`` where it keeps both. Where prices are
        not known there are no dollars to compare, and seconds alone decide."""
        if self.max_latency_ratio and forecast.seconds > self.max_latency_ratio * plain.seconds:
            return f"max_latency_ratio = {self.max_latency_ratio:g}"
        if not self.max_cost_ratio or forecast.dollars is None or plain.dollars is None:
            return None
        if forecast.dollars > self.max_cost_ratio * plain.dollars:
            return f"max_cost_ratio = {self.max_cost_ratio:g}"
        return None

    def excess(self, forecast: Forecast, plain: Forecast) -> float:
        """By how many times a plan exceeds the ratio it exceeds most; 1 or less where it keeps
        both."""
        found = 0.0
        if self.max_latency_ratio and plain.seconds:
            found = forecast.seconds / plain.seconds / self.max_latency_ratio
        if self.max_cost_ratio and forecast.dollars is not None and plain.dollars:
            found = max(found, forecast.dollars / plain.dollars / self.max_cost_ratio)
        return found

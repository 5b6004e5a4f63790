"""What a plan is judged by: J = seconds + dollars / usd_per_second, and the limits it must keep."""

from __future__ import annotations

from dataclasses import dataclass

from specroute.policy.base import Ask, Forecast


@dataclass(frozen=True, slots=True)
class Objective:
    """The user's word on seconds and dollars. A ratio of 0 is no limit."""

    usd_per_second: float = 0.01
    """What a saved second is worth."""
    max_num_speculative_tokens: int = 16
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

    def broken(self, forecast: Forecast, plain: Forecast, ask: Ask) -> str | None:
        """The limit that a plan would break, in a few words; ``None`` where it keeps them all.

        Where prices are not known, a cost limit can't be checked: then the plan is refused, since a
        limit that was asked for must hold.
        """
        if self.max_latency_ratio and forecast.seconds > self.max_latency_ratio * plain.seconds:
            return f"max_latency_ratio = {self.max_latency_ratio:g}"
        if ask.seconds is not None and forecast.seconds > ask.seconds >= plain.seconds:
            return "the deadline"
        if ask.dollars is not None and (forecast.dollars is None or forecast.dollars > ask.dollars):
            return "the most it may cost"
        if not self.max_cost_ratio or forecast.dollars is None or plain.dollars is None:
            return None
        if forecast.dollars > self.max_cost_ratio * plain.dollars:
            return f"max_cost_ratio = {self.max_cost_ratio:g}"
        return None

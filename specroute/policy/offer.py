"""What a forecaster gives: a method's best settings, and what the whole request takes at them."""

from __future__ import annotations

from dataclasses import dataclass

from specroute.policy.objective import Forecast

UNTRIED_DRAFT_S = 0.004
"""Seconds per drafted token assumed before a drafter was ever timed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A method's best settings (named as in :class:`Plan`) and what they are expected to take."""

    forecast: Forecast
    k: int = 0
    lanes: int = 0
    chunk: int = 0
    worth: float = 0.0
    depth: int = 0
    max_rounds: int = 0
    lost: float = 0.0
    """Tokens that the others at the target and the drafter lose by it (``crowd``)."""

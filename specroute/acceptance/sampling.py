"""How the target samples one request: temperature and the cuts after it.

Knows the caller's own settings; deliberately not how any server spells them, and not penalties or
biases: requests with those are not judged at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GREEDY_BELOW = 1e-5
"""Servers (vLLM's ``_SAMPLING_EPS``) treat temperatures below this as 0."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target samples this request.

    Order: temperature, then top_k, then top_p over what top_k left (renormalised), as vLLM and
    transformers do. ``min_p`` comes before top_k in vLLM V1 and last in transformers; where the
    two orders differ, :func:`visible` answers "unseen".
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or less: off."""
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature!r}, expected a number >= 0")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}, expected 0 to 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p!r}, expected 0 to 1")

    @property
    def greedy(self) -> bool:
        """Whether the target takes its argmax."""
        return self.temperature < GREEDY_BELOW

    @property
    def cut(self) -> bool:
        """Whether top_k, top_p or min_p leave tokens out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

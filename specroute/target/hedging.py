"""When a second request is worth sending: a target's own TTFTs, and how often it may be done.

Pure but for the clock's values that are passed in. Knows no requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW = 200
"""TTFTs that are remembered."""
NEEDED = 20
"""As many are needed before any request is hedged."""
QUANTILE = 0.95
BURST = 2.0
"""Hedges that may follow each other at once."""


class Hedging:
    """A target's: its last TTFTs, and a bucket that every request fills by the share of requests
    that may be hedged."""

    def __init__(self) -> None:
        self._ttfts: deque[float] = deque(maxlen=WINDOW)
        self._tokens = 1.0

    def seen(self, ttft_s: float) -> None:
        """One request's time to its first token."""
        self._ttfts.append(ttft_s)

    @property
    def after_s(self) -> float | None:
        """How long to wait for a first token: the TTFTs' p95; ``None``: too few were seen."""
        if len(self._ttfts) < NEEDED:
            return None
        return quantile(sorted(self._ttfts), QUANTILE)

    def begin(self, share: float) -> None:
        """A request begins, of which ``share`` may be hedged."""
        self._tokens = min(BURST, self._tokens + share)

    def take(self) -> bool:
        """Whether one may be hedged now; if so, it counts."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def quantile(ordered: Sequence[float], q: float) -> float:
    """By linear interpolation between the two nearest; ``ordered`` is not empty."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])

"""Top log-probabilities as evidence: ranked, checked, and the mass they leave hidden.

Knows what no server can mean; deliberately not temperatures, cuts or drafts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

VOCABULARY_BOUND = 2**19
"""No vocabulary is larger."""
LEAST_BEST = -math.log(VOCABULARY_BOUND)
"""The most probable of so many tokens is at least this probable."""


def checked(
    top: Sequence[tuple[int, float]], n: int | None
) -> tuple[list[tuple[int, float]], float]:
    """The n highest with probability > 0, most likely first, and the mass that is hidden.

    Raises ``ValueError`` for what can't be top logprobs: empty, NaN, positive, summing above 1, an
    id twice, a best one that no vocabulary is large enough for, probability 0 listed while mass is
    missing.
    """
    if not top:
        raise ValueError("no logprobs at this position")
    if len({token for token, _ in top}) != len(top):
        raise ValueError("the same token id twice among the top logprobs")
    for token, value in top:
        if math.isnan(value) or value > 1e-4:
            raise ValueError(f"logprob of token {token} is {value!r}, expected <= 0")
    ranked = sorted(top, key=lambda entry: (-entry[1], entry[0]))[:n]
    possible = [entry for entry in ranked if math.exp(entry[1]) > 0.0]
    mass = math.fsum(math.exp(value) for _, value in possible)
    if mass > 1 + 1e-3:
        raise ValueError(f"the top logprobs sum to a probability of {mass:.4f}, expected <= 1")
    if not possible:
        raise ValueError("every top logprob says probability 0")
    if possible[0][1] < LEAST_BEST:
        raise ValueError(
            f"the highest top logprob is {possible[0][1]:.2f}, expected at least {LEAST_BEST:.2f}"
        )
    tail = max(0.0, 1.0 - mass)
    if len(possible) < len(ranked):  # what is hidden is no likelier than what is listed with 0
        if tail > 1e-3:
            raise ValueError(f"probability 0 is listed while {tail:.4f} of the mass is missing")
        tail = 0.0
    return possible, tail if tail > 1e-12 else 0.0

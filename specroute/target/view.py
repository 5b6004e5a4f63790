"""The target's view of a draft: one internal type that every scoring dialect fills.

Knows what evidence looks like and what makes it impossible; knows no wire format and no rule of
acceptance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specroute.types import Usage


class BadEvidence(Exception):
    """What came back can't be the target's view of what was sent; says why. Never used, never
    raised to a caller: the method hands over to a plain call."""


@dataclass(frozen=True, slots=True)
class Position:
    """The target's distribution at one drafted token's place.

    ``key`` is the drafted token as the server names it: an id where it shows ids, else its text.
    ``logprob`` is the drafted token's own; ``None`` where the dialect doesn't show it (``fanout``,
    for a token outside the top N). ``top`` holds (key, log-probability in nats) pairs, most
    probable first; empty where the dialect shows the drafted token alone.
    """

    key: int | str
    logprob: float | None
    top: tuple[tuple[int | str, float], ...]

    @property
    def argmax(self) -> int | str:
        """The most probable token; among exact ties the lowest id, as servers choose.

        :class:`BadEvidence` where no alternatives are shown.
        """
        if not self.top:
            raise BadEvidence("only the drafted token's log-probability is shown")
        best = self.top[0][1]
        ties = [key for key, logprob in self.top if logprob == best]
        ids = [key for key in ties if isinstance(key, int)]
        return min(ids) if len(ids) == len(ties) else ties[0]


@dataclass(frozen=True, slots=True)
class Sample:
    """What the target itself drew at one place, under the caller's sampling settings.

    No token and ``finish == "stop"``: it ended the answer there. No token and another finish: the
    server drew one that it does not show.
    """

    tokens: tuple[int | str, ...]
    finish: str | None


@dataclass(frozen=True, slots=True)
class View:
    """One scoring answer: a position for every drafted token, then what the target generated.

    ``bonus`` counts only if every drafted token passed. ``finish`` is the server's finish reason of
    the generated part.
    """

    positions: tuple[Position, ...]
    bonus: tuple[int | str, ...]
    finish: str | None
    usage: Usage
    seconds: float
    before: int = 0
    """Tokens that the server counted before the draft: prompt and committed."""
    samples: tuple[Sample, ...] = ()
    """From dialects that draw at every place (``fanout``): one per position, and one more behind
    the draft. Only those up to and with the first that disagrees with the draft count."""


def checked_logprob(value: object, where: str) -> float:
    """A log-probability as a float; :class:`BadEvidence` for null, NaN, or anything above 0.

    Servers clamp -inf to values such as -9999 (vLLM); those pass.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise BadEvidence(f"the log-probability of {where} is {value!r}")
    if value > 1e-6:
        raise BadEvidence(f"the log-probability of {where} is positive ({value})")
    return min(float(value), 0.0)

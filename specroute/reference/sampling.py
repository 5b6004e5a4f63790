"""How a token is chosen from a distribution. Pure Python: no torch, no I/O, no clock.

Knows temperature, top_k, top_p and bias, in vLLM's order; deliberately not where probabilities come
from. Randomness is a uniform number that is passed in, so that one uniform is one token and a seed
means the same answer whatever else the server is doing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NEVER = -9999.0
"""What a logprob of ``-inf`` becomes on the wire, as in vLLM: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What shapes the distribution that a token is drawn from.

    The order is vLLM's: bias, temperature, ``top_k`` (ties with the k-th are kept), then ``top_p``
    (the smallest set of most likely tokens that reaches it). Temperature 0 is the argmax.
    """

    temperature: float = 1.0
    top_k: int = 0
    """0 means all."""
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether no randomness is used at all."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether the distribution is the model's own, untouched."""
        return self.temperature == 1 and self.top_k == 0 and self.top_p == 1


class Table:
    """A next-token distribution given by its probabilities, float64 and exact. Immutable.

    Tokens that aren't listed have probability 0.
    """

    __slots__ = ("_cdf", "_ids", "_logs", "_ranked", "_shaped")

    def __init__(self, weights: Mapping[int, float]) -> None:
        """Normalise ``weights`` (id to weight; at least one positive, none negative)."""
        total = math.fsum(weights.values())
        ranked = sorted(
            ((i, w / total) for i, w in weights.items() if w > 0),
            key=lambda pair: (-pair[1], pair[0]),
        )
        self._ids = [i for i, _ in ranked]
        self._cdf = _cumulative(p for _, p in ranked)
        self._ranked = [(i, math.log(p)) for i, p in ranked]
        self._logs = dict(self._ranked)
        self._shaped: dict[Settings, tuple[list[int], list[float]]] = {}

    def greedy(self, bias: dict[int, float]) -> int:
        """The most likely id after adding ``bias``; ties go to the lowest id."""
        if not bias:
            return self._ids[0]
        return min((-(log + bias.get(i, 0.0)), i) for i, log in self._ranked)[1]

    def draw(self, settings: Settings, bias: dict[int, float], u: float) -> int:
        """The id at quantile ``u`` of the shaped distribution."""
        if bias:
            ids, cdf = _shape([(i, log + bias.get(i, 0.0)) for i, log in self._ranked], settings)
        elif settings.plain:
            ids, cdf = self._ids, self._cdf
        else:
            known = self._shaped.get(settings)
            if known is None:
                known = _shape(self._ranked, settings)
                if len(self._shaped) < 64:
                    self._shaped[settings] = known
            ids, cdf = known
        return ids[min(bisect_right(cdf, u * cdf[-1]), len(ids) - 1)]

    def logprob(self, token: int) -> float:
        """Natural log of the probability; ``-inf`` for a token that isn't listed."""
        return self._logs.get(token, -math.inf)

    def top(self, n: int) -> list[tuple[int, float]]:
        """The ``n`` most likely ids that have any probability."""
        return self._ranked[:n]

    def scaled(self, temperature: float) -> Table:
        """The same after ``temperature`` > 0."""
        peak = self._ranked[0][1]
        return Table({i: math.exp((log - peak) / temperature) for i, log in self._ranked})


def _shape(
    logits: Iterable[tuple[int, float]], settings: Settings
) -> tuple[list[int], list[float]]:
    temperature = settings.temperature
    ranked = sorted(
        ((log / temperature, i) for i, log in logits), key=lambda pair: (-pair[0], pair[1])
    )
    if 0 < settings.top_k < len(ranked):
        kth = ranked[settings.top_k - 1][0]
        ranked = [pair for pair in ranked if pair[0] >= kth]
    peak = ranked[0][0]
    weights = [math.exp(log - peak) for log, _ in ranked]
    if settings.top_p < 1:
        goal, reached, kept = settings.top_p * math.fsum(weights), 0.0, 0
        for weight in weights:
            reached += weight
            kept += 1
            if reached >= goal:
                break
        weights = weights[:kept]
    ids = [i for _, i in ranked[: len(weights)]]
    return ids, _cumulative(weights)


def _cumulative(weights: Iterable[float]) -> list[float]:
    total, out = 0.0, []
    for weight in weights:
        total += weight
        out.append(total)
    return out

"""A world made from a scenario: every request's answer, every draft's hits, every delay.

All chance is drawn here, by request and position and never by what a policy does, so that policies
meet the same luck (common random numbers). Knows no policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from specroute.simulate.scenario import (
    DRAFTERS,
    SHORT,
    USD_IN,
    VERIFY_PER_TOKEN_S,
    Drafter,
    Scenario,
)

NOISE = 4096
_JITTER = 0.15
"""Standard deviation of ln(R): network and queue."""
_STALL = (0.01, 3.0)
"""(share of requests that stall, by what factor)."""
_BETWEEN = 0.5
"""Standard deviation of a request's own logit(α), in the heavy shape."""


@lru_cache(4)
def noise(seed: int) -> tuple[list[float], list[float]]:
    """(factors on R with mean 1, their running sum from 0)."""
    rng = random.Random(f"noise {seed}")
    raw = []
    for _ in range(NOISE):
        factor = math.exp(rng.gauss(0.0, _JITTER))
        raw.append(factor * _STALL[1] if rng.random() < _STALL[0] else factor)
    mean = sum(raw) / NOISE
    factors = [x / mean for x in raw] * 2
    sums = [0.0]
    for x in factors:
        sums.append(sums[-1] + x)
    return factors, sums


class World(Protocol):
    """What a run needs of a world. Requests are numbered from 0; tokens of an answer as well."""

    @property
    def requests(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def temperature(self) -> float | None:
        """What drafts are drawn at; ``None``: they aren't, answers are greedy."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """``provider:model``; the first is the requests' own, others may be chosen instead."""
        ...

    @property
    def drafters(self) -> tuple[Drafter, ...]: ...
    @property
    def shadow(self) -> bool:
        """Whether finished answers are scored by the drafters that did not draft for them."""
        ...

    def traffic(self, i: int) -> str:
        """The traffic class of request i."""
        ...

    def context(self, i: int) -> int:
        """Prompt tokens of request i."""
        ...

    def tokens(self, i: int) -> int:
        """Of its answer."""
        ...

    def tpot(self, i: int, target: str) -> float:
        """Seconds per token of a stream."""
        ...

    def ttft(self, i: int, n: int, target: str) -> float:
        """Seconds to the first token of a stream, as the n-th request that request i sends."""
        ...

    def round_s(self, i: int, n: int, k: int, target: str) -> float:
        """Seconds of a scoring request of k tokens, as the n-th that request i sends."""
        ...

    def prices(self, target: str) -> tuple[float, float, float | None] | None:
        """(input, output, cached input) in dollars per token; ``None`` where not known."""
        ...

    def runs(self, i: int, drafter: Drafter, target: str) -> Sequence[int]:
        """At each position of answer i: how many drafted tokens in a row would be accepted."""
        ...

    def confidences(self, i: int, drafter: Drafter, target: str) -> Sequence[float]:
        """The drafter's own probability of its token at each position."""
        ...


class Synthetic:
    """The world of ``scenario``, with its luck."""

    temperature: float | None = None
    drafters: tuple[Drafter, ...] = DRAFTERS

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.requests, self.seed = scenario.requests, scenario.seed
        self.targets = tuple(target.name for target in scenario.targets)
        self.shadow = scenario.shadow
        self._targets = {target.name: target for target in scenario.targets}
        self.factors, self.sums = noise(scenario.seed)
        rng = random.Random(f"contexts {scenario.seed}")
        self.contexts = [rng.randrange(200, 1000) for _ in range(scenario.requests)]
        self.pace = [math.exp(rng.gauss(0.0, 0.03)) for _ in range(scenario.requests)]
        self._runs: dict[tuple[int, str, str], list[int]] = {}

    def traffic(self, i: int) -> str:
        scenario = self.scenario
        if scenario.new_at:
            return "new" if i >= scenario.new_at else "old"
        return f"class {i % scenario.classes}" if scenario.classes > 1 else ""

    def context(self, i: int) -> int:
        return self.contexts[i]

    def tokens(self, i: int) -> int:
        short = self.scenario.short
        if short and random.Random(f"length {self.seed} {i}").random() < short:
            return SHORT
        return self.scenario.tokens

    def first_factor(self, i: int) -> int:
        """Where request i's own delays begin in ``factors``."""
        return (i * 97) % NOISE

    def tpot(self, i: int, target: str) -> float:
        return self.scenario.tpot_at(i) * self._targets[target].tpot * self.pace[i]

    def r(self, i: int, target: str) -> float:
        """R of request i, before its jitter."""
        return self.scenario.r_at(i) * self._targets[target].r

    def round_s(self, i: int, n: int, k: int, target: str) -> float:
        wait = self.r(i, target) * self.factors[self.first_factor(i) + n % NOISE]
        return wait + self.tpot(i, target) + k * VERIFY_PER_TOKEN_S

    def ttft(self, i: int, n: int, target: str) -> float:
        return self.round_s(i, n, 0, target)

    def prices(self, target: str) -> tuple[float, float, float | None]:
        usd_in = USD_IN * self._targets[target].price
        cached = self.scenario.cached
        return usd_in, usd_in * self.scenario.out_in, None if cached is None else usd_in * cached

    def runs(self, i: int, drafter: Drafter, target: str) -> list[int]:
        key = (i, drafter.name, target)
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = self._draw_runs(i, drafter, target)
        return found

    def _draw_runs(self, i: int, drafter: Drafter, target: str) -> list[int]:
        scenario = self.scenario
        rng = random.Random(f"{scenario.seed} {i} {drafter.name} {target}")
        alpha = 1 - (1 - scenario.alpha_at(i)) * drafter.worse * self._targets[target].worse
        alpha = max(alpha, 0.05)
        draw, n = rng.random, self.tokens(i)
        if scenario.shape == "geometric":
            hits = [draw() < alpha for _ in range(n)]
        else:
            logit = math.log(alpha / (1 - alpha)) + rng.gauss(0.0, _BETWEEN)
            alpha = 1 / (1 + math.exp(-logit))
            after_hit, after_miss = (1 + alpha) / 2, alpha / 2  # stationary: α
            hits, hit = [], False
            for _ in range(n):
                hit = draw() < (after_hit if hit else after_miss)
                hits.append(hit)
        return runs_of(hits)

    def confidences(self, i: int, drafter: Drafter, target: str) -> list[float]:
        """High where the drafter is right, as far as drafts know: it tells right from wrong with
        an AUC of about .8."""
        runs = self.runs(i, drafter, target)
        rng = random.Random(f"{self.scenario.seed} {i} {drafter.name} q")
        return [rng.random() ** (0.25 if run else 1.0) for run in runs]


def runs_of(hits: Sequence[bool]) -> list[int]:
    """At each position: how many hits in a row begin there."""
    runs, run = [0] * len(hits), 0
    for j in range(len(hits) - 1, -1, -1):
        run = run + 1 if hits[j] else 0
        runs[j] = run
    return runs

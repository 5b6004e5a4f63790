"""A world of sampled answers, where acceptance depends on the temperature drafts are drawn at.

Rejection sampling accepts a drafted token with the chance Σ min(p, q) (Leviathan et al., arXiv
2211.17192). Here p and q are softmaxes of synthetic logits: the target's are normal, the draft's
are the target's with noise, times a *scale*. A draft of scale 1 is as sure of itself as the target
is; above it is too sure, below not sure enough. So the best temperature for a draft is about its
scale, and its acceptance there is what the noise leaves. Knows no policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

from specroute.policy.adaptive import Adaptive
from specroute.policy.objective import Objective
from specroute.simulate.judge import Verdict
from specroute.simulate.run import run
from specroute.simulate.scenario import DRAFTERS, Drafter, Scenario
from specroute.simulate.world import Synthetic, runs_of

VOCABULARY = 24
POSITIONS = 256
"""Pairs of logits; each position of an answer has one of them."""
SPREAD = 3.0
"""Standard deviation of the target's logits."""
NOISE = 0.9
"""Of what the draft's differ by."""
SCALES = (0.6, 1.0, 1.8)
"""Drafts that are too unsure, right, and too sure of themselves."""
GAIN, LOSS = 0.95, 1.01
"""At most so many seconds with tuning for one without, where the draft is off, where it isn't."""


@lru_cache(32)
def overlaps(scale: float, temperature: float) -> tuple[float, ...]:
    """Σ min(p, q) of each pair of logits, for answers at T = 1 and drafts at ``temperature``."""
    rng = random.Random("logits")
    found = []
    for _ in range(POSITIONS):
        target = [rng.gauss(0.0, SPREAD) for _ in range(VOCABULARY)]
        draft = [scale * (x + rng.gauss(0.0, NOISE)) / temperature for x in target]
        found.append(sum(map(min, _softmax(target), _softmax(draft))))
    return tuple(found)


def _softmax(logits: Sequence[float]) -> list[float]:
    most = max(logits)
    weights = [math.exp(x - most) for x in logits]
    total = sum(weights)
    return [w / total for w in weights]


class Tempered(Synthetic):
    """``scenario`` with answers at T = 1 and drafts of such a ``scale``; its α and shape say
    nothing here."""

    temperature = 1.0

    def __init__(self, scenario: Scenario, scale: float) -> None:
        super().__init__(scenario)
        self.drafters = DRAFTERS[:1]  # A look-up draws nothing.
        self.scale = scale

    def runs(self, i: int, drafter: Drafter, target: str) -> list[int]:
        """A token has the same luck at every temperature: it passes below its own overlap."""
        at = drafter.temperature or self.temperature
        key = (i, f"{drafter.name} {at:g}", target)
        found = self._runs.get(key)
        if found is None:
            rng = random.Random(f"{self.scenario.seed} {i} {drafter.name}")
            chances = overlaps(self.scale, at)
            hits = [
                rng.random() < chances[rng.randrange(POSITIONS)]
                for _ in range(self.scenario.tokens)
            ]
            found = self._runs[key] = runs_of(hits)
        return found


def tuned(scale: float, requests: int = 200, seed: int = 1) -> float:
    """Seconds with the draft's temperature tuned over those without, of all requests."""
    policy = Adaptive(Objective(1.0))
    cell = Scenario(r=0.01, shadow=False, seed=seed, requests=requests, tokens=200)
    with_, without = (
        sum(run(Tempered(cell, scale), replace(policy, tune_draft_temperature=tune)).seconds)
        for tune in (True, False)
    )
    return with_ / without


def tuning(seeds: Sequence[int] = (1, 2), requests: int = 200) -> Verdict:
    """Whether tuning finds a better temperature where there is one, and loses nothing else."""
    found = {s: fmean([tuned(s, requests, seed) for seed in seeds]) for s in SCALES}
    holds = all(ratio <= (LOSS if scale == 1.0 else GAIN) for scale, ratio in found.items())
    each = ", ".join(f"{ratio:.3f} at {scale:g}" for scale, ratio in found.items())
    said = (
        "tuning the draft's temperature wins where the draft is too sure or too unsure, and loses "
        "nothing where it isn't (seconds with it over without, by the draft's scale)"
    )
    return Verdict(holds, said, each)

"""The draft's temperature is found out where the policy may tune it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, AcceptanceCounts
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask
from specroute.policy.temperature import choose_temperature
from specroute.simulate.tempered import overlaps, tuning
from specroute.types import Exactness, Method
from tests.policy.test_choice import figures

RATES = {1.0: 0.6, 0.7: 0.8, 1.4: 0.7}


def test_the_best_temperature_is_found() -> None:
    """And used almost always from then on."""
    rng, counts = random.Random(2), {t: AcceptanceCounts(0.99) for t in RATES}
    used: Counter[float] = Counter()
    for n in range(600):
        seen = [(t, c.frozen()) for t, c in counts.items() if c.frozen().weight]
        chosen = choose_temperature(1.0, seen, rng) or 1.0
        used[chosen] += n >= 300
        run = 0
        while run < 8 and rng.random() < RATES[chosen]:
            run += 1
        counts[chosen].add(run, run + (run < 8))
    assert used[0.7] > 240


def test_the_usual_one_comes_first() -> None:
    """Once it is known how it does, the others are tried about as often."""
    rng = random.Random(5)
    assert {choose_temperature(0.8, (), rng) for _ in range(50)} == {None}
    usual = ((0.8, Acceptance((16.0,), (20.0,))),)
    chosen = Counter(choose_temperature(0.8, usual, rng) for _ in range(900))
    assert set(chosen) == {None, 0.56, 1.12}
    assert min(chosen.values()) > 150


def test_only_where_it_may_be_tuned() -> None:
    """And where drafts are drawn at all."""
    options = Candidates((PLAIN, Candidate(Method.SCORE, "d", Exactness.EXACT)))
    sharp = ((1.0, Acceptance((5.0,), (100.0,))), (0.7, Acceptance((99.0,), (100.0,))))
    seen = replace(figures(0.9), by_temperature=sharp)
    for tune, temperature, wanted in (
        (True, 1.0, 0.7),
        (True, None, None),
        (False, 1.0, None),
    ):
        policy = Adaptive(tune_draft_temperature=tune)
        ask = Ask(100, temperature=temperature)
        plan = policy.plan(ask, options, lambda _: seen, random.Random(1))
        assert plan.method is Method.SCORE
        assert plan.draft_temperature == wanted


def test_a_draft_does_best_at_its_own_scale() -> None:
    """Drawn at that, it is as sure of itself as the target: all that is left is the noise."""
    temperatures = (0.4, 0.6, 1.0, 1.4, 1.8, 2.5)
    for scale in (0.6, 1.0, 1.8):
        found = {t: fmean(overlaps(scale, t)) for t in temperatures}
        best = max(temperatures, key=lambda t: found[t])
        assert best == scale
        assert abs(found[best] - fmean(overlaps(1.0, 1.0))) < 0.01


def test_tuning_wins_where_there_is_something_to_win() -> None:
    """In virtual time: with drafts that are too sure or too unsure, and not at others' expense."""
    found = tuning(seeds=(1,), requests=120)
    assert found.holds, found.figure

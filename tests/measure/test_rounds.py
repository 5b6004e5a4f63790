"""Rounds are counted right-censored, follow changes, and are lent between classes once."""

from __future__ import annotations

import math
import random

import pytest

from specroute.measure import AcceptanceCounts
from specroute.measure.acceptance import MAX_K, NO_EVIDENCE, STRENGTH, hardness
from specroute.measure.lending import HALF_LIFE_S, SHADOW, Rounds


def one_round(rng: random.Random, alpha: float, k: int = 5) -> tuple[int, int]:
    accepted = 0
    while accepted < k and rng.random() < alpha:
        accepted += 1
    return accepted, min(accepted + 1, k)


def play(
    rounds: Rounds,
    alpha: float,
    n: int,
    seed: int = 1,
    k: int = 5,
    *,
    each: int = 20,
    shadow: bool = False,
) -> None:
    """``n`` rounds, ``each`` of them an answer."""
    rng = random.Random(seed)
    for start in range(0, n, each):
        answer = object()
        for _ in range(min(each, n - start)):
            rounds.add(*one_round(rng, alpha, k), shadow=shadow, answer=answer, at=0.0)
        rounds.over(answer, shadow=shadow)


def tree() -> tuple[Rounds, Rounds, Rounds]:
    root = Rounds()
    return root, Rounds(root), Rounds(root)


def test_a_round_that_takes_up_a_run_says_nothing_of_its_beginning() -> None:
    """Left-truncated: runs cut into rounds in flight are counted as whole ones are."""
    whole, cut = Rounds(), Rounds()
    rng = random.Random(5)
    for _ in range(60):
        accepted, judged = one_round(rng, 0.8, 12)
        whole.add(accepted, judged, weight=0.0001, at=0.0)
        for start in range(0, judged, 4):
            part = min(accepted - start, 4), min(judged - start, 4)
            cut.add(*part, weight=0.0001, start=start, at=0.0)
    assert cut.own().judged == pytest.approx(whole.own().judged, rel=1e-3)
    assert cut.own().passed == pytest.approx(whole.own().passed, rel=1e-3)


def test_a_round_that_accepts_all_says_nothing_of_the_next_position() -> None:
    """Right-censored: only judged positions count."""
    counts = AcceptanceCounts()
    for _ in range(50):
        counts.add(2, 2)
    for _ in range(50):
        counts.add(0, 1)
    frozen = counts.frozen()
    assert frozen.judged == (100, 50)
    assert frozen.passed == (50, 50)
    s = frozen.survival(3)
    assert s[0] == pytest.approx(0.5, abs=0.05)
    assert s[1] / s[0] > 0.9
    assert 0.5 < s[2] / s[1] < 1  # no evidence there: the rate over all


def test_rounds_longer_than_the_longest_are_cut() -> None:
    """And say nothing of what comes after."""
    counts = AcceptanceCounts()
    counts.add(MAX_K + 6, MAX_K + 7)
    assert len(counts.frozen().judged) == MAX_K
    assert counts.frozen().passed == counts.frozen().judged


@pytest.mark.parametrize(("k", "alpha"), [(2, 0.8), (5, 0.6), (16, 0.95)])
def test_survival_is_found_whatever_the_window(k: int, alpha: float) -> None:
    """Censoring takes care of it."""
    rounds = Rounds()
    play(rounds, alpha, 2000, k=k)
    for j, estimate in enumerate(rounds.evidence().estimates(k), start=1):
        assert estimate.low <= alpha**j <= estimate.high


def test_a_class_alone_is_not_lent_its_own_evidence() -> None:
    """What the coarser class has is all this class's: nothing is lent."""
    _, leaf, _ = tree()
    play(leaf, 0.8, 300)
    assert leaf.evidence() == leaf.own()


def test_a_class_is_lent_what_the_others_saw() -> None:
    """At each position at most the prior's strength, at the others' rate."""
    _, mine, other = tree()
    play(other, 0.9, 500)
    mine.add(9, 10, at=0.0)
    evidence = mine.evidence()
    assert evidence.judged[0] == pytest.approx(1 + STRENGTH)
    assert evidence.passed[0] == pytest.approx(1 + 0.9 * STRENGTH, abs=0.3)


def test_a_class_that_is_refused_is_lent_less_at_every_position() -> None:
    """Its first rounds tell of positions that they never got to; how often it is refused is how
    often the others are, to one power at all positions."""
    _, mine, other = tree()
    play(other, 0.9, 500)
    before = mine.lends().survival(8)
    for _ in range(6):
        mine.add(0, 1, at=0.0)
    evidence = mine.evidence()
    rates = [p / n for p, n in zip(evidence.passed, evidence.judged, strict=True)]
    assert max(rates[1:8]) < 0.6
    assert evidence.survival(8)[7] < before[7] / 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("power", [0.3, 1.0, 4.0, 12.0])
def test_hardness_is_the_power_that_made_the_rounds(power: float, seed: int) -> None:
    """Of rounds whose every token passes with the others' rate to that power."""
    rng, rates = random.Random(seed), [0.8, 0.9, 0.95, 0.97] * 2
    own = AcceptanceCounts()
    for _ in range(400):
        passed = 0
        while passed < 8 and rng.random() < rates[passed] ** power:
            passed += 1
        own.add(passed, min(passed + 1, 8))
    assert hardness(own.frozen(), rates) == pytest.approx(power, rel=0.35)
    assert hardness(NO_EVIDENCE, rates) == 1.0


def test_lending_survives_fading_and_changes() -> None:
    """The class's part of the coarser one is known exactly however both were rescaled since."""
    root, mine, other = tree()
    play(mine, 0.9, 1500)
    play(mine, 0.3, 300)
    assert mine.steps >= 1
    assert root._without(mine).weight < 1.0
    play(other, 0.5, 60)
    lent = root._without(mine)
    assert lent.rate == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize("rounds_each", [3, 20])
@pytest.mark.parametrize(("before", "after"), [(0.3, 0.9), (0.9, 0.4)])
def test_a_step_is_followed_within_fifty_requests(
    before: float, after: float, rounds_each: int
) -> None:
    """Within a dozen, with many rounds a request or three."""
    _, leaf, _ = tree()
    play(leaf, before, 400 * rounds_each, each=rounds_each)
    play(leaf, after, 12 * rounds_each, seed=2, each=rounds_each)
    assert leaf.steps == 1
    assert leaf.evidence().survival(1)[0] == pytest.approx(after, abs=0.12)


def test_answers_that_differ_are_no_step() -> None:
    """Each answer with an acceptance of its own: 800 answers, no alarm, and wider intervals."""
    rng = random.Random(4)
    alike, apart = Rounds(), Rounds()
    for _ in range(800):
        alpha = 1 / (1 + math.exp(-rng.gauss(1.4, 0.7)))
        answer = object()
        for _ in range(20):
            alike.add(*one_round(rng, 0.8), answer=answer, at=0.0)
            apart.add(*one_round(rng, alpha), answer=answer, at=0.0)
        alike.over(answer)
        apart.over(answer)
    assert (alike.steps, apart.steps) == (0, 0)
    assert apart.own().dispersion > 2 * alike.own().dispersion


def test_one_bad_answer_is_no_change() -> None:
    """However many rounds it had."""
    rounds = Rounds()
    play(rounds, 0.8, 4000)
    before = rounds.evidence().survival(1)[0]
    play(rounds, 0.2, 60, seed=2, each=60)
    assert rounds.steps == 0
    assert rounds.evidence().survival(1)[0] > before - 0.12


def test_an_answer_that_never_ends_is_looked_at_all_the_same() -> None:
    """Once others have had many rounds since."""
    rounds = Rounds()
    play(rounds, 0.9, 2000)
    rng = random.Random(3)
    for _ in range(40):
        answer = object()
        for _ in range(20):
            rounds.add(*one_round(rng, 0.3), answer=answer, at=0.0)
    assert rounds.steps == 1


def test_shadows_count_for_less_and_apart() -> None:
    """Beside real rounds; alone they are what is known."""
    _, leaf, _ = tree()
    play(leaf, 0.6, 50, shadow=True)
    shadow = leaf.own(shadow=True)
    assert leaf.own().weight == 0
    assert leaf.evidence().weight == pytest.approx(SHADOW * shadow.weight)


def test_a_step_that_shadows_show_ends_what_rounds_had_shown() -> None:
    """Acceptance recovered while every answer went plain: the old rounds give way."""
    _, leaf, _ = tree()
    play(leaf, 0.3, 2000)
    play(leaf, 0.3, 300, seed=2, shadow=True)
    play(leaf, 0.9, 200, seed=3, shadow=True)
    assert leaf.evidence().survival(1)[0] > 0.8


def test_a_dump_is_taken_over_with_its_lending() -> None:
    """At a share of its weight, rates as they were; a class still isn't lent its own."""
    root, mine, other = tree()
    play(mine, 0.9, 400)
    play(other, 0.5, 200)
    root2, mine2, _ = tree()
    root2.load(root.dump(), 0.5, 1.0)
    mine2.load(mine.dump(), 0.5, 0.5)
    assert mine2.own().weight == pytest.approx(0.5 * mine.own().weight)
    assert mine2.own().rate == pytest.approx(mine.own().rate)
    assert root2._without(mine2).rate == pytest.approx(root._without(mine).rate, abs=0.02)


def test_a_day_without_rounds_takes_half_of_the_weight() -> None:
    """From the rate nothing; an hour takes nothing at all."""
    rounds = Rounds()
    for i in range(400):
        rounds.add(1, 2, at=1000.0 + i)
    before = rounds.own().weight
    rounds.add(1, 2, at=1400.0 + 3000)
    assert rounds.own().weight == pytest.approx(before, rel=0.01)
    rounds.add(1, 2, at=4400.0 + HALF_LIFE_S)
    assert rounds.own().weight == pytest.approx(before / 2, rel=0.02)
    assert rounds.own().rate == pytest.approx(0.5)


def test_units_never_overflow() -> None:
    """However many rounds there were."""
    rounds = Rounds()
    for _ in range(80_000):
        rounds.add(1, 2, at=0.0)
    assert rounds.own().rate == pytest.approx(0.5)
    assert rounds.own().judged[0] == pytest.approx(500, rel=0.01)

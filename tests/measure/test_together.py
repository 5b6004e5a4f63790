"""How many have been seen to win by a plan together: a rate of rounds that any resource may limit."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from statistics import fmean

import pytest

from specroute.measure.together import FEWEST, HALF_S, LATER, Member, Together
from specroute.policy.crowd import A_FEW, joins, most_together

ROUND_S, TOKENS, TPOT = 0.3, 3, 0.2
"""Alone, a round of .3 s brings three tokens, for which plain takes .6 s."""


def ramp(per_round: float, seconds: float, *, asking: int, seed: int = 1) -> tuple[int, int, float]:
    """``asking`` requests without end take each place that there is. A round takes ``ROUND_S`` and
    waits its turn at something that takes ``per_round`` for each (a loop, a drafter, a target).
    Comes to (most at a time, how many at the end, all seconds over those that plain takes)."""
    together, now, free = Together(), 0.0, 0.0
    clock = lambda: now  # noqa: E731
    rng, turn = random.Random(seed), itertools.count()
    queue: list[tuple[float, int, Member]] = []
    due = lambda tokens, first: tokens * TPOT  # noqa: E731
    most, took, plain = 0, 0.0, 0.0

    def go(member: Member) -> None:
        nonlocal free
        free = max(free, now) + per_round
        at = max(free, now + ROUND_S * rng.uniform(0.9, 1.1))
        heapq.heappush(queue, (at, next(turn), member))

    while now < seconds:
        while len(queue) < asking and joins(together.room(now)):
            go(together.joins(clock, due, 1e9))
        most = max(most, len(queue))
        before, tokens = now, rng.choice((1, TOKENS, 2 * TOKENS - 1))
        now, _, member = heapq.heappop(queue)
        took, plain = took + (len(queue) + 1) * (now - before), plain + tokens * TPOT
        member.brought(tokens)
        if together.room(now).others <= max(A_FEW, most_together(together.room(now))):
            go(member)
        else:
            member.end()
    return most, len(queue), took / plain


def test_at_first_a_few_may_whatever_was_measured_alone() -> None:
    """A crowd that comes at once goes plain but for these."""
    together = Together()
    for _ in range(A_FEW):
        assert joins(together.room(0.0))
        together.joins(float, lambda tokens, first: None)
    assert not joins(together.room(0.0))


def test_where_it_pays_everybody_may_after_a_few_rounds_each() -> None:
    """A hundred: five doublings, each two or three rounds of those who are there."""
    assert ramp(0.0, 20 * ROUND_S, asking=100)[:2] == (100, 100)


def test_what_all_share_stops_it_near_the_number_at_which_nobody_wins() -> None:
    """A thing that takes 20 ms a round: more than 30 at a time wait longer than plain takes. They go
    over it once by a doubling, and on the whole they are no later than plain."""
    at_rest = TOKENS * TPOT / 0.02
    found = [ramp(0.02, 60.0, asking=1000, seed=seed) for seed in range(5)]
    assert max(most for most, _, _ in found) <= 3 * at_rest
    assert fmean(ratio for _, _, ratio in found) <= 1.1
    assert fmean(last for _, last, _ in found) >= at_rest / 2


def brought(together: Together, members: int, took: float, now: float) -> None:
    """A verdict of so many: each brings ``FEWEST`` tokens in ``took`` seconds, plain in one."""
    group = [together.joins(lambda: now, lambda tokens, first: 1.0) for _ in range(members)]
    for _ in range(LATER * max(members, 2)):
        together.brought(now, FEWEST, took, 1.0, members)
    together.room(now)
    for member in group:
        member.end()


@pytest.mark.parametrize(("took", "proven"), [(0.9, 16), (1.0, 16), (1.1, 1), (2.0, 4)])
def test_as_many_as_win_are_proven_and_a_quarter_of_those_who_clearly_lose(
    took: float, proven: float
) -> None:
    """16 at a time; a tenth later than plain is nothing that 48 pieces could tell."""
    together = Together()
    brought(together, 16, took, 0.0)
    if took == 2.0:
        brought(together, 16, 0.5, 0.0)
        brought(together, 16, took, 0.0)
    assert together.room(0.0).proven == proven


def test_what_nobody_shows_again_is_forgotten() -> None:
    """Half of it, and never less than one."""
    together = Together()
    brought(together, 64, 0.5, 0.0)
    assert together.room(HALF_S).proven == pytest.approx(32)
    assert together.room(20 * HALF_S).proven == 1
    brought(together, 8, 0.5, HALF_S)
    assert together.room(2 * HALF_S).proven == pytest.approx(16)


def test_a_readers_waits_are_no_part_of_a_requests_time() -> None:
    """Of two seconds one and a half were its reader's."""
    together, now, waited = Together(), 0.0, 0.0
    group = [together.joins(lambda: now, lambda tokens, first: 0.6, 9.0, lambda: waited)] * 3
    member = group[0]
    for _ in range(4):
        now, waited = now + 2.0, waited + 1.5
        member.brought(FEWEST)
    assert together.room(now).lost == math.inf


def test_tokens_that_come_together_are_one_piece() -> None:
    """A round is told of as a whole, however many commits it makes: the first token of each has
    taken all of the round's time."""
    together, now = Together(), 0.0
    members = [together.joins(lambda: now, lambda tokens, first: 0.2 * tokens) for _ in range(8)]
    for _ in range(6):
        now += 0.5
        for member in members:
            for _ in range(4):
                member.brought(1)
    found = together.room(now)
    assert (found.proven, found.lost) == (pytest.approx(8), math.inf)


def test_a_start_is_shared_out_over_the_answer() -> None:
    """Two seconds later than plain at first, each of the 25 rounds after it half a second earlier."""
    together, now = Together(), 0.0
    due = lambda tokens, first: 0.5 if first else 1.0  # noqa: E731
    members = [together.joins(lambda: now, due, 104.0) for _ in range(8)]
    now = 2.5
    for _ in range(8):
        for member in members:
            member.brought(4)
        now += 0.5
    found = together.room(now)
    assert (found.proven, found.lost) == (pytest.approx(8, rel=0.01), math.inf)


def test_who_has_ended_is_counted_no_more_and_tells_nothing() -> None:
    """Twice is as once."""
    together = Together()
    member, other = (together.joins(float, lambda tokens, first: 9.0) for _ in range(2))
    assert together.room(0.0).others == 2
    member.end()
    member.end()
    member.brought(100)
    assert together.room(0.0).others == 1
    other.end()
    assert not together.busy

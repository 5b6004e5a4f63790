"""Seeded distribution tests: speculative answers are distributed as the target's own.

A scripted target over 24 tokens whose distribution depends on the previous token; drafts that are
good, bad and adversarial; rounds of K = 3. The first two tokens of each answer, alone and as a
pair, must lie below the 99.9 % quantile of plain sampling's own total variation; deliberately
wrong variants of the rule must miss it by more than three times.
"""

import math
import random
from bisect import bisect
from collections import Counter
from functools import cache
from itertools import accumulate

import pytest

from specroute.acceptance import Sampling, draw, judge, match, verify, visible
from tests.support.distribution import pairs, second, total_variation, tv_quantile

V, K, N_VISIBLE, ANSWERS = 24, 3, 20, 100_000

SETTINGS = [
    Sampling(0.7, top_p=0.75),
    Sampling(0.7, top_k=12),
    Sampling(1.0, top_p=0.9),
    Sampling(1.0, top_p=0.9, top_k=16),
    Sampling(1.3, top_k=12),
    Sampling(1.3, top_p=0.9, top_k=14),
]


@cache
def raw(context: int, sharpness: float = 1.4, seed: int = 7) -> tuple[float, ...]:
    """The target's raw distribution after ``context``."""
    rng = random.Random(seed * 1000 + context)
    weights = [math.exp(rng.gauss(0, sharpness)) for _ in range(V)]
    return tuple(w / sum(weights) for w in weights)


def target(sampling: Sampling):
    """p for every context, from the top N alone."""
    seen = {}
    for context in range(V):
        top = sorted(((i, math.log(p)) for i, p in enumerate(raw(context))), key=lambda e: -e[1])
        seen[context] = visible(top[:N_VISIBLE], sampling)
        assert seen[context] is not None
    return seen


def good(context: int) -> dict[int, float]:
    """Close to the target's raw distribution."""
    other = raw(context, seed=8)
    return {i: 0.8 * a + 0.2 * b for i, (a, b) in enumerate(zip(raw(context), other, strict=True))}


def bad(context: int) -> dict[int, float]:
    """Unrelated to the target."""
    return dict(enumerate(raw(context, sharpness=2.0, seed=9)))


def adversarial(context: int) -> dict[int, float]:
    """Mass where the target has least, and none on its favourite."""
    inverse = [1 / p for p in raw(context)]
    inverse[max(range(V), key=raw(context).__getitem__)] = 0.0
    return {i: w / sum(inverse) for i, w in enumerate(inverse)}


def greedy(context: int) -> dict[int, float]:
    """Always the target's third choice: a deterministic draft."""
    third = sorted(range(V), key=raw(context).__getitem__)[-3]
    return {third: 1.0}


def answers(p, draft, rng, check=verify, deterministic=False):
    """Two-token answers by rounds of draft and verification, from context 0."""
    q = {context: draft(context) for context in range(V)}
    tokens = {context: list(q[context]) for context in q}
    sums = {context: list(accumulate(q[context].values())) for context in q}
    for _ in range(ANSWERS):
        out, context = [], 0
        while len(out) < 2:
            drafted, state = [], context
            for _ in range(K):
                ladder = sums[state]
                state = tokens[state][bisect(ladder, rng.random() * ladder[-1])]
                drafted.append(state)
            contexts = [context, *drafted[:-1]]
            outcome = check(
                drafted,
                [p[c] for c in contexts],
                None if deterministic else [q[c] for c in contexts],
                rng,
            )
            out += drafted[: outcome.accepted]
            context = out[-1] if out else 0
            if outcome.token is not None:
                out.append(outcome.token)
            elif outcome.verdict != "rejected":
                out.append(draw(p[context], rng.random()))  # the target goes on: bonus or plain
            context = out[-1]
        yield tuple(out[:2])


@cache
def bounds(sampling: Sampling):
    """What first token, second token and pair should be, and how far plain sampling strays."""
    p = target(sampling)
    expected = (p[0], second(p[0], p), pairs(p[0], p))
    return [(e, tv_quantile(e, ANSWERS, reps=2000)) for e in expected]


def excess(results, sampling) -> float:
    """The largest of TV / quantile over first token, second token and pair."""
    counts = Counter(results)
    first, later = Counter(), Counter()
    for (a, b), c in counts.items():
        first[a] += c
        later[b] += c
    assert counts.total() == ANSWERS
    return max(
        total_variation(seen, expected) / quantile
        for seen, (expected, quantile) in zip((first, later, counts), bounds(sampling), strict=True)
    )


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("draft", [good, bad, adversarial], ids=lambda d: d.__name__)
def test_drawn_drafts(sampling, draft):
    """Rejection sampling with full q is lossless."""
    p = target(sampling)
    assert excess(answers(p, draft, random.Random(1)), sampling) < 1


@pytest.mark.parametrize("sampling", SETTINGS[1:5:3], ids=str)
def test_deterministic_drafts(sampling):
    """A greedy draft has q = 1 on its token."""
    p = target(sampling)
    assert excess(answers(p, greedy, random.Random(2), deterministic=True), sampling) < 1


def test_unseen_positions_leave_the_answer_alone():
    """Going on plainly *before* an unjudged token is lossless."""
    p = target(SETTINGS[2])

    def sometimes_blind(drafted, positions, q, rng):
        hide = [None if i == 1 else position for i, position in enumerate(positions)]
        return verify(drafted, hide, q, rng)

    assert excess(answers(p, good, random.Random(3), sometimes_blind), SETTINGS[2]) < 1


def test_sample_and_match():
    """Committing the server's own draws is lossless with any draft."""
    p = target(SETTINGS[3])

    def matching(drafted, positions, q, rng):
        return match(drafted, [draw(position, rng.random()) for position in positions])

    assert excess(answers(p, adversarial, random.Random(4), matching), SETTINGS[3]) < 1


# Wrong on purpose: each must fail the same check clearly.


def top_renormalised(drafted, positions, q, rng):
    """The residual is renormalised over the likeliest few."""
    for i, x in enumerate(drafted):
        p, qi = positions[i], q[i]
        if rng.random() < min(1.0, p.get(x, 0.0) / qi[x]):
            continue
        few = dict(list(p.items())[:5])
        residual = {v: pv - qi[v] for v, pv in few.items() if pv > qi[v]} or few
        total = sum(residual.values())
        outcome = verify(drafted[:i], positions[:i], None, _Always())
        token = draw({v: r / total for v, r in residual.items()}, rng.random())
        return type(outcome)(i, token, "rejected")
    return verify(drafted, positions, None, _Always())


def plain_after_rejection(drafted, positions, q, rng):
    """A rejection is left unfinished and the target goes on from there."""
    outcome = verify(drafted, positions, q, rng)
    if outcome.verdict == "rejected":
        return type(outcome)(outcome.accepted, None, "unseen")
    return outcome


def drops_low_confidence(drafted, positions, q, rng):
    """A token is dropped because its own draft probability is low, then drawn afresh."""
    for i, x in enumerate(drafted):
        if q[i][x] < 0.08:
            outcome = verify(drafted[:i], positions[:i], q[:i], rng)
            if outcome.verdict == "all":
                return type(outcome)(i, None, "unseen")
            return outcome
    return verify(drafted, positions, q, rng)


def raw_logprobs(drafted, positions, q, rng):
    """The server's raw probabilities are taken for the ones it samples from."""
    contexts = [0, *drafted[:-1]]
    return verify(drafted, [dict(enumerate(raw(c))) for c in contexts], q, rng)


class _Always:
    """A coin that always accepts."""

    def random(self) -> float:
        return -1.0


@pytest.mark.parametrize(
    ("wrong", "sampling"),
    [
        (top_renormalised, Sampling(1.0, top_k=16)),
        (plain_after_rejection, Sampling(1.0, top_k=16)),
        (drops_low_confidence, Sampling(1.0, top_k=16)),
        (raw_logprobs, Sampling(0.7, top_k=16)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_check_bites(wrong, sampling):
    """Each known trap misses the bound by more than three times."""
    p = target(sampling)
    assert excess(answers(p, good, random.Random(5), wrong), sampling) > 3


def test_one_coin_gives_one_answer():
    """Judging a position again with its coin repeats the decision."""
    p, q, rng = target(SETTINGS[2])[0], good(0), random.Random(6)
    for _ in range(1000):
        x, coin = draw(q, rng.random()), rng.random()
        assert judge(x, p, q, coin) == judge(x, p, q, coin)

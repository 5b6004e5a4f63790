"""Seeded distribution tests: speculative answers are distributed as the target's own.

For each rule, 100,000 two-token answers against a scripted target over 24 tokens, with drafts that
are good, bad, adversarial and deterministic. The first token, the second and the pair must lie below
the 99.9 % quantile of plain sampling's own total variation at that size; what is known to be wrong
must miss it by more than three times.
"""

import math
import random

import pytest

from specroute.acceptance import (
    Envelope,
    Evidence,
    Outcome,
    Rule,
    Sampling,
    Server,
    TailDraw,
    choose_rule,
    draw,
    judge,
    judging,
    match,
    step,
    verify,
)
from tests.maths.world import (
    ANSWERS,
    Target,
    V,
    adversarial,
    answers,
    bad,
    excess,
    good,
    greedy,
    quantile_draw,
    raw,
    stream,
    unlikely,
)

CUT = [
    Sampling(0.7, top_p=0.75),
    Sampling(0.7, top_k=12),
    Sampling(1.0, top_p=0.9),
    Sampling(1.0, top_p=0.9, top_k=16),
    Sampling(1.3, top_k=12),
    Sampling(1.3, top_p=0.9, top_k=14),
]
COLD, UNCUT, HOT = Sampling(0.7), Sampling(1.0), Sampling(1.3)
BIAS, NO_BIAS = Server(logit_bias=True), Server()
NO_LOGPROBS = Server(draw_logprobs=False)


def by_rules(target: Target, server: Server = BIAS, give_up=lambda request: False):
    """Each position by the strongest rule, the requests answered by the target's own draws."""

    def check(drafted, contexts, q, rng):
        positions = [target.evidence(c, x) for c, x in zip(contexts, drafted, strict=True)]
        going = judging(drafted, positions, q, target.sampling, server, rng, batch=2)
        found = step(going)
        while not isinstance(found, Outcome):
            if give_up(found):
                return Outcome(found.position, None, "unseen")
            found = step(going, target.answer(found, contexts[found.position]))
        return found

    return check


def rule_of(target: Target, server: Server, drawn: bool) -> set[Rule]:
    """The rules that the positions of a target get."""
    return {
        choose_rule(target.evidence(c, x).sees, target.sampling, server, drawn=drawn).rule
        for c in range(V)
        for x in range(V)
    }


@pytest.mark.parametrize(
    ("sampling", "draft"),
    [
        *zip(CUT, (good, bad, adversarial, good, bad, adversarial), strict=True),
        (CUT[0], adversarial),
        (CUT[3], bad),
        (CUT[4], good),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_everything_visible(sampling, draft):
    """Rule 5: rejection sampling where the cuts leave only what is visible in the top 20."""
    target = Target(sampling, n=20)
    p = [target.evidence(c, 0).p for c in range(V)]

    def check(drafted, contexts, q, rng):
        return verify(drafted, [p[c] for c in contexts], q, rng)

    assert excess(answers(target, draft, check), sampling) < 1


RULES = [
    pytest.param(Rule.TAIL, UNCUT, 6, BIAS, [good, bad, adversarial], id="4"),
    pytest.param(Rule.TAIL, UNCUT, 6, Server(True, False, True), [unlikely], id="4-point"),
    pytest.param(Rule.TAIL, COLD, 6, BIAS, [good, bad, adversarial, unlikely], id="6"),
    pytest.param(Rule.SELF_REJECTION, UNCUT, 0, NO_BIAS, [good, bad, adversarial], id="2"),
    pytest.param(Rule.SELF_REJECTION, UNCUT, 6, NO_LOGPROBS, [greedy], id="2-point"),
    pytest.param(Rule.SELF_REJECTION, UNCUT, 0, BIAS, [greedy], id="2-point-bias"),
    pytest.param(Rule.MATCH, HOT, 6, BIAS, [good, greedy], id="3-hot"),
    pytest.param(Rule.MATCH, COLD, 6, NO_BIAS, [bad], id="3-cold"),
    pytest.param(Rule.MATCH, CUT[3], 0, BIAS, [good], id="3-cut"),
]


@pytest.mark.parametrize(
    ("rule", "sampling", "n", "server", "draft"),
    [
        pytest.param(*case.values[:4], draft, id=f"{case.id}-{draft.__name__}")
        for case in RULES
        for draft in case.values[4]
    ],
)
def test_what_the_target_is_asked_for(rule, sampling, n, server, draft):
    """Rules 2, 3, 4 and 6, each alone, with n logprobs visible."""
    target = Target(sampling, n)
    assert rule_of(target, server, draft in (good, bad, adversarial)) == {rule}
    assert excess(answers(target, draft, by_rules(target, server)), sampling) < 1


def test_rules_mix_within_an_answer():
    """Where a nucleus is visible at some positions only, the others are matched."""
    target = Target(CUT[2], n=9)
    assert rule_of(target, BIAS, True) == {Rule.VISIBLE, Rule.MATCH}
    assert excess(answers(target, good, by_rules(target)), CUT[2]) < 1


def test_giving_up_before_anything_is_decided():
    """At a request that is not ``mid_rejection`` the target may go on by itself."""
    target = Target(COLD, n=3)
    check = by_rules(target, BIAS, lambda request: not request.mid_rejection)
    assert excess(answers(target, bad, check), COLD) < 1


def test_unseen_positions_leave_the_answer_alone():
    """Going on plainly *before* an unjudged token is lossless."""
    target = Target(CUT[2], n=20)
    p = [target.evidence(c, 0).p for c in range(V)]

    def check(drafted, contexts, q, rng):
        return verify(drafted, [p[contexts[0]], None][: len(drafted)], q, rng)

    assert excess(answers(target, good, check), CUT[2]) < 1


def test_sample_and_match():
    """Rule 3 on a fan-out: committing the server's own draws is lossless with any draft."""
    target = Target(CUT[3])

    def check(drafted, contexts, q, rng):
        return match(drafted, [next(target.own[c]) for c in contexts])

    assert excess(answers(target, adversarial, check), CUT[3]) < 1


def test_a_bias_that_is_not_heeded():
    """Banned answers are thrown away, so a server that ignores ``logit_bias`` biases nothing."""
    target = Target(UNCUT, n=6)
    heeding, whole = (
        target.answer,
        {c: stream(dict(enumerate(raw(c))), target.rng) for c in range(V)},
    )

    def ignoring(request, context):
        if isinstance(request, TailDraw):
            return [target.drawn[context][next(whole[context])]]
        return heeding(request, context)

    target.answer = ignoring
    assert excess(answers(target, bad, by_rules(target)), UNCUT) < 1


def drawn_in_part(target, whole: bool):
    """The second token is drawn after an even first one and a point mass after an odd one."""
    third = {c: next(iter(greedy(c))) for c in range(V)}

    def check(drafted, contexts, q, rng):
        drafted, q = list(drafted), list(q)
        if len(drafted) > 1 and drafted[0] % 2:
            drafted[1], q[1] = third[drafted[0]], None
            q = None if whole else q
        positions = [target.evidence(c, x) for c, x in zip(contexts, drafted, strict=True)]
        going = judging(drafted, positions, q, target.sampling, BIAS, rng)
        found = step(going)
        while not isinstance(found, Outcome):
            found = step(going, target.answer(found, contexts[found.position]))
        # ``answers`` has the draft that it made: what stands is told as the target's own.
        if found.accepted == 2 and found.token is None:
            return Outcome(1, drafted[1], "rejected")
        return found

    return check


def test_a_draft_that_is_drawn_in_part():
    """Each token is judged by its own q, whatever came after it."""
    target = Target(CUT[2], n=20)
    assert excess(answers(target, bad, drawn_in_part(target, whole=False)), CUT[2]) < 1


# Wrong on purpose: each must fail the same check clearly.


def plain_after_rejection(target):
    """A rejection is left unfinished and the target goes on from there."""
    check = by_rules(target)

    def wrong(drafted, contexts, q, rng):
        outcome = check(drafted, contexts, q, rng)
        if outcome.verdict == "rejected":
            return Outcome(outcome.accepted, None, "unseen")
        return outcome

    return wrong


def gives_up_mid_rejection(target):
    """The tail is not asked for: the target goes on instead."""
    return by_rules(target, BIAS, lambda request: request.mid_rejection)


def renormalised(target):
    """The residual is renormalised over what is visible."""

    def wrong(drafted, contexts, q, rng):
        for i, (x, c) in enumerate(zip(drafted, contexts, strict=True)):
            if rng.random() < raw(c)[x] / q[i][x]:
                continue
            seen = target.evidence(c, x).shown.visible
            residual = {v: pv - q[i][v] for v, pv in seen.items() if pv > q[i][v]} or seen
            return Outcome(i, draw(residual, rng.random() * sum(residual.values())), "rejected")
        return Outcome(len(drafted), None, "all")

    return wrong


def drops_low_confidence(target):
    """A token is dropped because its own draft probability is low, then drawn afresh."""
    check = by_rules(target)

    def wrong(drafted, contexts, q, rng):
        low = next((i for i, x in enumerate(drafted) if q[i][x] < 0.08), len(drafted))
        outcome = check(drafted[:low], contexts[:low], q[:low], rng)
        return outcome if outcome.verdict == "rejected" else Outcome(low, None, "unseen")

    return wrong


def raw_logprobs(target):
    """The server's raw probabilities are taken for the ones it samples from."""

    def wrong(drafted, contexts, q, rng):
        return verify(drafted, [dict(enumerate(raw(c))) for c in contexts], q, rng)

    return wrong


def keeps_every_tail_draw(target):
    """Below T = 1 what the tail drew is kept with certainty."""

    class Careless(Envelope):
        def kept(self, logprob):
            return 1.0

    cache = {}

    def careless(c, x):
        if (c, x) not in cache:
            e = honest(c, x)
            s = e.shown
            s = Careless(s.visible, s.hidden, s.power, s.edge, s.log_total)
            cache[c, x] = Evidence(e.logprob, None, s, e.top, e.tail)
        return cache[c, x]

    honest, target.evidence = target.evidence, careless
    return by_rules(target)


def one_coin_for_all_positions(target):
    """A generator seeded anew at each position gives each the same coin."""

    def wrong(drafted, contexts, q, rng):
        coin = rng.random()
        for i, (x, c) in enumerate(zip(drafted, contexts, strict=True)):
            token = judge(x, target.p[c], None if q is None else q[i], coin)
            if token != x:
                return Outcome(i, token, "rejected")
        return Outcome(len(drafted), None, "all")

    return wrong


def one_seed_for_all_lanes(target):
    """Every entry of a fan-out is drawn with the same seed."""

    def wrong(drafted, contexts, q, rng):
        u = rng.random()
        return match(drafted, [quantile_draw(target.p[c], u) for c in contexts])

    return wrong


def forgets_q(target):
    """A drawn token counts as a point mass because a later one is none."""
    return drawn_in_part(target, whole=True)


@pytest.mark.parametrize(
    ("wrong", "sampling"),
    [
        (plain_after_rejection, UNCUT),
        (gives_up_mid_rejection, UNCUT),
        (renormalised, UNCUT),
        (drops_low_confidence, UNCUT),
        (raw_logprobs, COLD),
        (keeps_every_tail_draw, COLD),
        (one_coin_for_all_positions, UNCUT),
        (one_seed_for_all_lanes, UNCUT),
        (forgets_q, UNCUT),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_check_bites(wrong, sampling):
    """Each known trap misses the bound by more than three times."""
    target = Target(sampling, n=3)
    draft = greedy if wrong is one_coin_for_all_positions else good
    assert excess(answers(target, draft, wrong(target)), sampling) > 3


@pytest.mark.parametrize("fair", [True, False], ids=["preset", "first-to-finish"])
def test_lanes(fair):
    """Among lanes a preset rule is lossless; the first to finish is not, as time hangs on tokens."""
    target = Target(UNCUT)
    seconds = [math.sqrt(1 + v) for v in range(V)]

    def lane():
        a = next(target.own[0])
        return a, next(target.own[a])

    def race():
        for _ in range(ANSWERS):
            lanes = [lane(), lane()]
            yield lanes[0] if fair else min(lanes, key=lambda found: sum(seconds[v] for v in found))

    assert (excess(race(), UNCUT) < 1) if fair else (excess(race(), UNCUT) > 3)


def test_one_coin_gives_one_answer():
    """Judging a position again with its coin repeats the decision."""
    p, q, rng = Target(CUT[2]).p[0], good(0), random.Random(6)
    for _ in range(1000):
        x, coin = draw(q, rng.random()), rng.random()
        assert judge(x, p, q, coin) == judge(x, p, q, coin)

"""Which rule applies and what it asks for: tables."""

import math
import random

import pytest

from specroute.acceptance import (
    Draw,
    Drawn,
    Envelope,
    Evidence,
    Outcome,
    Ratio,
    Rule,
    Sampling,
    Sees,
    Server,
    TailDraw,
    Typical,
    choose_rule,
    judging,
    step,
)

GREEDY, COLD, ONE, HOT = Sampling(0.0), Sampling(0.7), Sampling(1.0), Sampling(1.3)
NUCLEUS = Sampling(1.0, top_p=0.9)
MUTE = Server(draws=False)
DRAWS = Server()
BIAS = Server(logit_bias=True)
NO_LOGPROBS = Server(draw_logprobs=False, logit_bias=True)


@pytest.mark.parametrize(
    ("sees", "sampling", "server", "drawn", "rule"),
    [
        (Sees.ALL, GREEDY, MUTE, False, Rule.GREEDY),
        (Sees.TOP, GREEDY, MUTE, True, Rule.GREEDY),
        (Sees.DRAFTED, GREEDY, DRAWS, False, Rule.MATCH),
        (Sees.NOTHING, GREEDY, MUTE, False, Rule.PLAIN),
        (Sees.ALL, ONE, MUTE, True, Rule.VISIBLE),
        (Sees.ALL, NUCLEUS, BIAS, True, Rule.VISIBLE),
        (Sees.ALL, HOT, BIAS, False, Rule.VISIBLE),
        (Sees.TOP, ONE, BIAS, True, Rule.TAIL),
        (Sees.TOP, ONE, BIAS, False, Rule.TAIL),
        (Sees.TOP, ONE, NO_LOGPROBS, False, Rule.TAIL),
        (Sees.TOP, ONE, NO_LOGPROBS, True, Rule.MATCH),
        (Sees.TOP, ONE, DRAWS, True, Rule.SELF_REJECTION),
        (Sees.TOP, ONE, DRAWS, False, Rule.SELF_REJECTION),
        (Sees.TOP, ONE, MUTE, True, Rule.PLAIN),
        (Sees.DRAFTED, ONE, BIAS, True, Rule.SELF_REJECTION),
        (Sees.DRAFTED, ONE, NO_LOGPROBS, False, Rule.SELF_REJECTION),
        (Sees.DRAFTED, ONE, NO_LOGPROBS, True, Rule.MATCH),
        (Sees.NOTHING, ONE, BIAS, True, Rule.MATCH),
        (Sees.TOP, COLD, BIAS, True, Rule.TAIL),
        (Sees.TOP, COLD, BIAS, False, Rule.TAIL),
        (Sees.TOP, COLD, NO_LOGPROBS, False, Rule.MATCH),
        (Sees.TOP, COLD, DRAWS, True, Rule.MATCH),
        (Sees.DRAFTED, COLD, BIAS, True, Rule.MATCH),
        (Sees.TOP, HOT, BIAS, True, Rule.MATCH),
        (Sees.TOP, HOT, MUTE, True, Rule.PLAIN),
        (Sees.TOP, NUCLEUS, BIAS, True, Rule.MATCH),
        (Sees.TOP, Sampling(1.0, top_k=50), BIAS, True, Rule.MATCH),
        (Sees.TOP, Sampling(0.7, min_p=0.01), BIAS, True, Rule.MATCH),
    ],
)
def test_the_strongest_rule(sees, sampling, server, drawn, rule):
    """The strongest exact rule that request, evidence and server allow, with its label."""
    choice = choose_rule(sees, sampling, server, drawn=drawn)
    label = "exact-greedy" if sampling.greedy else "exact"
    assert (choice.rule, choice.exactness) == (rule, label)


@pytest.mark.parametrize(
    ("lossy", "sees", "drawn", "expected"),
    [
        (Ratio(0.5), Sees.TOP, False, (Rule.RATIO, "heuristic")),
        (Ratio(0.5), Sees.DRAFTED, True, (Rule.RATIO, "heuristic")),
        (Ratio(0.5), Sees.DRAFTED, False, (Rule.SELF_REJECTION, "exact")),
        (Typical(), Sees.ALL, True, (Rule.TYPICAL, "heuristic")),
        (Typical(), Sees.TOP, True, (Rule.TYPICAL, "heuristic")),
        (Typical(), Sees.DRAFTED, True, (Rule.SELF_REJECTION, "exact")),
    ],
)
def test_lossy_rules_are_asked_for(lossy, sees, drawn, expected):
    """A lossy rule applies where it was asked for and its evidence is there, and says so."""
    choice = choose_rule(sees, ONE, BIAS, drawn=drawn, lossy=lossy)
    assert (choice.rule, choice.exactness) == expected


def seen(x: int, *probabilities: float, n: int | None = None, sampling: Sampling = ONE) -> Evidence:
    top = [(i, math.log(p)) for i, p in enumerate(probabilities)]
    return Evidence.of(top, math.log(probabilities[x]), sampling, n)


def test_how_much_is_seen():
    """All, the top N with a tail, the drafted token alone, nothing."""
    assert seen(0, 0.5, 0.5).sees is Sees.ALL
    assert seen(0, 0.5, 0.3).sees is Sees.TOP
    assert seen(0, 0.5, 0.4, 0.1, n=2).sees is Sees.TOP
    assert Evidence.of([], -0.5, ONE).sees is Sees.DRAFTED
    assert Evidence().sees is Sees.NOTHING


@pytest.mark.parametrize("logprob", [math.nan, 0.5])
def test_an_impossible_logprob_is_refused(logprob):
    """A drafted token's logprob is a number, at most 0."""
    with pytest.raises(ValueError, match="drafted token's logprob"):
        Evidence.of([], logprob, ONE)


def test_the_envelope():
    """Visible ids and the tail sum to 1; at T = 1 they are p itself."""
    top = [(3, math.log(0.5)), (5, math.log(0.25))]
    one = Envelope.of(top, ONE)
    assert one.visible == pytest.approx({3: 0.5, 5: 0.25})
    assert (one.hidden, one.power) == (pytest.approx(0.25), 0)
    cold = Envelope.of(top, Sampling(0.5))  # weights 1/4, 1/16 and 1/4 · 1/4
    assert cold.visible == pytest.approx({3: 2 / 3, 5: 1 / 6})
    assert cold.hidden == pytest.approx(1 / 6)
    assert cold.share(math.log(0.25)) == pytest.approx(1 / 6)
    assert cold.claimed(math.log(0.125)) == pytest.approx(1 / 12)
    assert cold.kept(math.log(0.125)) == pytest.approx(1 / 2)
    assert Envelope.of(top, HOT) is None and Envelope.of(top, NUCLEUS) is None


class Coins(random.Random):
    """These numbers, then no more."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


def played(going, *answers):
    """The requests of a judging that is sent these answers, and what came of it."""
    asked, found = [], step(going)
    for answer in answers:
        asked.append(found)
        found = step(going, answer)
    return asked, found


def test_an_accepted_draft_asks_for_nothing():
    """Coins below p/q accept; one a position."""
    evidence = [seen(0, 0.5, 0.3), seen(1, 0.5, 0.3)]
    coins = Coins(0.49, 0.29)
    assert step(judging([0, 1], evidence, None, ONE, BIAS, coins)) == Outcome(2, None, "all")
    assert not coins.left


def test_a_visible_residual_asks_for_nothing():
    """A rejection whose residual falls among the visible is finished with the same coin."""
    going = judging([0], [seen(0, 0.5, 0.3)], None, ONE, BIAS, Coins(0.6))
    assert step(going) == Outcome(0, 1, "rejected")


def test_a_residual_in_the_tail_asks_once():
    """Point mass at T = 1: the tail without the visible and the drafted token; no logprob."""
    going = judging([2], [seen(2, 0.5, 0.3, 0.1, n=2)], None, ONE, BIAS, Coins(0.95))
    asked, found = played(going, [Drawn(7)])
    assert asked == [TailDraw(0, (0, 1, 2), with_logprobs=False, mid_rejection=True)]
    assert found == Outcome(0, 7, "rejected")


def test_a_banned_answer_is_asked_for_again():
    """A server that ignores the bias costs requests, not exactness."""
    going = judging([0], [seen(0, 0.5, 0.3)], None, ONE, BIAS, Coins(0.95))
    asked, found = played(going, [Drawn(1)], [Drawn(0)], [Drawn(9)])
    assert len(asked) == 3 and found == Outcome(0, 9, "rejected")


def test_draws_that_belie_the_evidence_are_refused():
    """Nothing but banned tokens, or one token over and over, for longer than chance has it."""
    going = judging([0], [seen(0, 0.5, 0.3)], None, ONE, BIAS, Coins(0.95))
    found = step(going)
    with pytest.raises(ValueError, match=r"93 draws in a row .* is 0\.8000"):  # .8^93 < 1e-9
        for _ in range(93):
            found = step(going, [Drawn(1)])
    assert found == TailDraw(0, (0, 1), False)

    evidence, q = [Evidence.of([], math.log(0.1), ONE)], [{0: 0.2, 1: 0.8}]
    going = judging([0], evidence, q, ONE, DRAWS, Coins(0.9, *[0.9] * 99))
    step(going)
    with pytest.raises(ValueError, match="token 1 was drawn over and over"):
        for _ in range(99):
            step(going, [Drawn(1, math.log(0.5))] * 4)


def test_self_rejection_keeps_what_the_draft_underrates():
    """Rule 2: draws are kept with 1 - q/p, a batch at a time, the rest of a batch unused."""
    q = [{0: 0.8, 1: 0.2, 2: 0.0}]
    evidence = [Evidence.of([], math.log(0.4), ONE)]
    going = judging([0], evidence, q, ONE, DRAWS, Coins(0.5, 0.6, 0.5, 0.6, 0.5, 0.0), batch=2)
    first = [Drawn(0, math.log(0.4)), Drawn(1, math.log(0.3))]  # q/p = 2, 2/3
    asked, found = played(going, first, [Drawn(2, math.log(0.3)), Drawn(0, math.log(0.4))])
    assert asked == [Draw(0, 2, with_logprobs=True, mid_rejection=True)] * 2
    assert found == Outcome(0, 2, "rejected")


def test_a_draw_that_starts_over_is_the_targets_own():
    """Below T = 1 a tail draw that is not kept ends in one plain draw, no longer mid-rejection."""
    evidence = [seen(0, 0.5, 0.3, sampling=Sampling(0.5))]
    going = judging([0], evidence, None, Sampling(0.5), BIAS, Coins(0.99, 0.9))
    asked, found = played(going, [Drawn(5, math.log(0.1))], [Drawn(0)])
    assert asked == [TailDraw(0, (0, 1), True), Draw(0)]
    assert not asked[1].mid_rejection
    assert found == Outcome(1, None, "all")  # the target drew what was drafted


def test_matching_goes_on_while_the_server_agrees():
    """Rule 3 commits what the server draws."""
    going = judging([4, 5, 6], [], None, HOT, DRAWS, Coins())
    asked, found = played(going, [Drawn(4)], [Drawn(9)])
    assert asked == [Draw(0), Draw(1)]
    assert found == Outcome(1, 9, "rejected")


def test_what_cannot_be_judged_is_left():
    """A mute server: judging stops before the first position that needs it."""
    going = judging([0, 1], [seen(0, 1.0)], None, ONE, MUTE, Coins(0.5))
    assert step(going) == Outcome(1, None, "unseen")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "gave none"),
        ([Drawn(7)], "logprob None"),
        ([Drawn(7, math.nan)], "logprob nan"),
        ([Drawn(7, -0.1)], "not raw logprobs"),
    ],
)
def test_answers_that_are_none(answer, said):
    """No draw, no logprob, or a tail token likelier than the visible ones: refused."""
    evidence = [seen(0, 0.5, 0.3, sampling=COLD)]
    going = judging([0], evidence, None, COLD, BIAS, Coins(0.999, 0.5))
    step(going)
    with pytest.raises(ValueError, match=said):
        step(going, answer)


def test_a_token_the_draft_could_not_have_drawn_raises():
    """q(x) = 0 is a broken drafter."""
    going = judging([0], [seen(0, 0.5, 0.3)], [{0: 0.0}], ONE, BIAS, Coins(0.5))
    with pytest.raises(ValueError, match="draft probability"):
        step(going)


@pytest.mark.parametrize(
    ("lossy", "evidence", "q", "accepted"),
    [
        (Ratio(0.5), seen(1, 0.5, 0.3), None, True),
        (Ratio(0.7), seen(1, 0.5, 0.3), None, False),
        (Ratio(0.5), seen(1, 0.5, 0.3), {1: 0.6}, True),
        (Ratio(0.5), seen(1, 0.5, 0.3), {1: 0.7}, False),
        (Ratio(0.5), seen(1, 0.75, 0.25, sampling=Sampling(0.5)), None, False),  # .1 of .9
        (Typical(0.09, 0.3), seen(1, 0.9, 0.1), None, True),
        (Typical(0.3, 0.3), seen(1, 0.8, 0.15), None, False),  # .3·e^-.6 = .16, with the tail
        (Typical(0.3, 0.3), seen(1, 0.8, 0.2), None, True),  # .3·e^-.5 = .18
    ],
)
def test_lossy_rules(lossy, evidence, q, accepted):
    """Likely enough stands; what is refused is replaced by the target's own."""
    q = None if q is None else [q]
    found = step(judging([1], [evidence], q, ONE, DRAWS, Coins(0.0), lossy=lossy))
    if accepted:
        assert found == Outcome(1, None, "all")
    else:
        assert found in (Draw(0), Outcome(0, 0, "rejected"))


@pytest.mark.parametrize(
    ("lossy", "accepted"), [(Ratio(0.5), True), (Ratio(0.7), False), (Typical(0.09, 0.3), True)]
)
def test_lossy_rules_are_lenient_at_temperature_0(lossy, accepted):
    """A token of .3 beside an argmax of .5: p as it is decides, and a refusal gives the argmax."""
    greedy = Sampling(0)
    evidence = seen(1, 0.5, 0.3, 0.2, sampling=greedy)
    assert evidence.p == {0: 1.0}
    found = step(judging([1], [evidence], None, greedy, DRAWS, Coins(0.4), lossy=lossy))
    assert found == (Outcome(1, None, "all") if accepted else Outcome(0, 0, "rejected"))
    assert step(judging([1], [evidence], None, greedy, DRAWS, Coins(0.4))).accepted == 0


@pytest.mark.parametrize("make", [lambda: Ratio(0), lambda: Ratio(2), lambda: Typical(0)])
def test_lossy_parameters_are_validated(make):
    """Parameters outside their range raise."""
    with pytest.raises(ValueError):
        make()

"""A class that has shown nothing itself is tried with care, whatever other classes have shown."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import Acceptance, Measurements, Snapshot
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Ask, Plan, RoundView
from specroute.policy.objective import Objective
from specroute.policy.trial import FIRST, FIRST_K
from specroute.simulate.newcomer import FIRST_MOST, MEAN_MOST, first_requests, scenarios
from specroute.speculation.planning import EVERY, Chosen
from specroute.types import Exactness, Method
from tests.policy.test_choice import figures, rate

SCORE = Candidate(Method.SCORE, "d", Exactness.EXACT)
PLAIN_S = 4.0
"""A plain call of ``figures``."""
WON = Account(allowance=PLAIN_S, spent=100.0)
"""What all classes have won together."""


def new(**more: object) -> Snapshot:
    lent = replace(rate(0.95, 8.0, 32), dispersion=8.0, of_others=True)
    return replace(figures(acceptance=lent, of_its_own=0.0), **more)  # type: ignore[arg-type]


def planned(
    seen: Snapshot,
    account: Account | None = None,
    together: Account = WON,
    plan: Candidate = SCORE,
) -> Plan:
    ask = Ask(100, account=account or Account(), together=together)
    return Adaptive(Objective(1.0)).plan(
        ask, Candidates((PLAIN, plan)), lambda _: seen, random.Random(1)
    )


def test_the_first_request_of_a_class_is_a_trial() -> None:
    """Of a few short rounds, though by what others have shown it would win by far."""
    plan = planned(new())
    assert (plan.method, plan.trial) == (Method.SCORE, True)
    assert plan.k <= FIRST_K
    assert 1 <= plan.tries <= 3
    assert plan.behind_s == pytest.approx(FIRST * PLAIN_S, rel=0.01)
    assert "little is known of its class yet" in plan.reason
    known = planned(new(of_its_own=100.0))
    assert (known.method, known.trial) == (Method.SCORE, False)
    assert known.k > FIRST_K


@pytest.mark.parametrize(
    ("account", "together", "said"),
    [
        (Account(), Account(), "could lose more"),
        (Account(allowance=-0.1), WON, "has lately lost more"),
        (Account(), replace(WON, allowance=-1.0), "could lose more"),
        (Account(allowance=0.03, spent=8.0), WON, "could lose more"),  # Plain pays .12 in.
        (Account(trying="another"), WON, "nothing is tried out now: another"),
        (Account(), replace(WON, allowance=0.01), "could lose more"),  # Others are tried on it.
    ],
)
def test_it_is_paid_by_what_all_classes_have_won(
    account: Account, together: Account, said: str
) -> None:
    """Once, one at a time in a class, while there is enough, and not by one that has lost before;
    else the class starts plain."""
    plan = planned(new(), account, together)
    assert plan.method is Method.PLAIN
    assert said in plan.reason


def test_many_new_classes_are_tried_beside_each_other() -> None:
    """As many as together lose no more than all classes have won: where each caller's own system
    prompt makes a class, one caller doesn't keep all others from drafts."""
    chosen = Chosen(Adaptive(Objective(1.0)), Exactness.BOUNDED)
    chosen.accounts["t", EVERY] = Account(allowance=0.5, spent=100.0)
    risked = []
    for _ in range(20):
        plan = planned(new(), together=chosen.together("t"))
        if plan.trial and plan.risk is not None:
            chosen.begin(("t", EVERY), plan)
            risked.append(plan.risk.seconds)
    assert 1 < len(risked) < 20
    assert sum(risked) <= 0.5


def test_a_round_that_is_dear_is_not_tried_on_credit() -> None:
    """Where one takes more than a thirtieth of a plain call, the first request is plain."""
    assert planned(new(verify_s=0.2)).method is Method.PLAIN
    own = Account(allowance=1.0, spent=50.0)
    assert planned(new(verify_s=0.2), own).trial  # What the class has won itself it may lose.


def test_a_whole_draft_that_is_dear_is_not_tried_on_credit() -> None:
    """Nothing of it might be kept, and there is no leaving it."""
    cascade = Candidate(Method.CASCADE, "d", Exactness.EXACT)
    assert planned(new(), plan=cascade).method is Method.PLAIN
    assert planned(new(of_its_own=100.0), plan=cascade).method is Method.CASCADE


def seen(plan: Plan, accepted: int, rounds: int, own: Acceptance, committed: int) -> RoundView:
    each = 0.05 + plan.k * 0.004
    return RoundView(
        rounds, committed, None, own, 0.05, 0.004, plan, 120, (plan.k, accepted), rounds * each
    )


def test_the_requests_own_rounds_decide_whether_it_goes_on() -> None:
    """Refused, it is plain after four rounds; accepted, K grows at once."""
    policy, figured = Adaptive(Objective(1.0)), new()
    plan = planned(figured)
    for rounds in range(plan.tries, 9):
        refused = seen(plan, 0, rounds, Acceptance((0.0,), (float(rounds),)), rounds)
        assert (policy.next_k(refused, figured) > 0) == (rounds < 4)
    whole = Acceptance((1.0,) * plan.k, (1.0,) * plan.k)
    assert policy.next_k(seen(plan, plan.k, 1, whole, plan.k + 1), figured) > plan.k


def test_lanes_of_a_new_class_end_where_it_is_harder() -> None:
    """Or late: beside them plain's own stream goes on."""
    policy, figured = Adaptive(Objective(1.0)), new()
    plan = replace(planned(figured), method=Method.PREFIX, tries=2)
    one = RoundView(3, 12, None, Acceptance((3.0,), (3.0,)), None, None, plan, 112, (6, 1), 0.5)
    refused = replace(one, own=Acceptance((1.0,), (4.0,)))
    late = replace(one, seconds=one.seconds + 0.2)
    known = replace(refused, plan=replace(plan, behind_s=math.inf))
    going_on = [policy.next_k(view, figured) > 0 for view in (one, refused, late, known)]
    assert going_on == [True, False, False, True]


def test_a_trial_of_a_new_class_is_left_once_it_is_late() -> None:
    """However much the rest is to bring."""
    figured = new()
    plan = planned(figured)
    own = Acceptance((3.0,) * 3, (3.0,) * 3)
    on_time = seen(plan, 2, 3, own, 9)
    assert Adaptive(Objective(1.0)).next_k(on_time, figured) > 0
    late = replace(on_time, seconds=on_time.seconds + 2 * plan.behind_s + 0.2)
    assert Adaptive(Objective(1.0)).next_k(late, figured) == 0


def test_measurements_say_what_a_class_has_of_its_own() -> None:
    """Rounds of another class are lent, and no more than that."""
    measured = Measurements()
    for _ in range(40):
        measured.round(
            "t", "d", "chat#a/prose/1k", drafted=8, accepted=8, judged=8, draft_s=0.01, verify_s=0.1
        )
    mine = measured.snapshot("t", "d", "chat#a/prose/1k")
    other = measured.snapshot("t", "d", "chat#b/code/1k")
    assert mine.of_its_own == pytest.approx(mine.acceptance.weight)
    assert (other.of_its_own, other.acceptance.of_others) == (0.0, True)
    assert other.acceptance.weight > 0
    assert Snapshot().of_its_own == math.inf


@pytest.mark.parametrize("n", [0, 7, 12, 19])
@pytest.mark.parametrize("after", [0.05, 0.5])
def test_the_first_requests_of_a_class_lose_little(after: float, n: int) -> None:
    """After a class whose drafts are nearly all accepted, in virtual time."""
    scenario = list(scenarios(0.95, after))[n]
    first = first_requests(scenario, Adaptive(Objective(1.0)))
    assert first.request <= FIRST_MOST
    assert first.eight <= MEAN_MOST


def _of_classes(*rates: float) -> Measurements:
    """After some classes one after another, each a request of six rounds."""
    measured, rng = Measurements(), random.Random(3)
    for number, odds in enumerate(rates):
        for _ in range(6):
            passed = next((i for i in range(4) if rng.random() > odds), 4)
            measured.round(
                "t", "d", f"chat#{number}/prose/1k", drafted=4, accepted=passed,
                judged=min(passed + 1, 4), draft_s=0.01, verify_s=0.1, answer=number,
            )  # fmt: skip
        measured.over("t", "d", f"chat#{number}/prose/1k", number)
    return measured


def test_a_new_class_goes_by_the_others_once_those_before_it_were_like_them() -> None:
    """Three in a row; a harder one among them makes each new one a trial again."""
    for count, even in ((1, False), (3, False), (4, True), (9, True)):
        found = _of_classes(*[0.9] * count).snapshot("t", "d", "chat#new/prose/1k")
        assert (found.of_its_own, found.even) == (0.0, even)
    assert not _of_classes(*[0.9] * 8, 0.05).snapshot("t", "d", "chat#new/prose/1k").even
    assert _of_classes(*[0.9] * 8, 0.05, *[0.9] * 12).snapshot("t", "d", "chat#new/prose/1k").even


def test_a_prompt_of_another_kind_is_new_to_its_own_system_prompt() -> None:
    """That all system prompts are alike says nothing of code after prose."""
    measured = _of_classes(*[0.9] * 9)
    assert measured.snapshot("t", "d", "chat#new/prose/1k").even
    assert not measured.snapshot("t", "d", "chat#3/code/1k").even


def test_a_class_that_can_be_taken_to_be_like_the_others_is_no_trial() -> None:
    """It is planned as any known one is."""
    assert planned(new()).trial
    assert not planned(new(even=True)).trial


def test_dollars_of_a_first_trial_are_paid_by_all_classes_together() -> None:
    """A new class has none of its own, and would never be tried where there is a limit."""
    seen = new(usd_in=3e-6, usd_out=15e-6)
    limited = Adaptive(Objective(1.0, max_cost_ratio=3.0))
    options = Candidates((PLAIN, SCORE))

    def plan(together: Account) -> Plan:
        ask = Ask(100, account=Account(), together=together)
        return limited.plan(ask, options, lambda _: seen, random.Random(1))

    assert plan(WON).method is Method.PLAIN
    assert plan(replace(WON, dollars=1.0)).trial

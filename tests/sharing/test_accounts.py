"""What may be risked together: changes add up in any order, and one worker at a time explores."""

from __future__ import annotations

import itertools
import random

import pytest

from specroute.policy.account import CAP, EARLY, LENT, Account, Settled
from specroute.sharing.accounts import (
    ASKED,
    HELD,
    KEPT_S,
    LEAVE_S,
    RENEWED_S,
    Accounts,
    Change,
    Leaves,
)

KEY = ("policy", "lab:big", "chat")
P = 2.0
"""J of a plain request."""


def settled(account: Account, j: float) -> tuple[Account, Change]:
    after = account.settle(Settled((None, "score", "d"), j, P), 0.005)
    return after, Change.between(account, after, P, None)


def test_what_first_requests_pay_in_is_one_for_all() -> None:
    """Two workers that settle requests at once add up to what one would have."""
    a, of_a = settled(Account(), P + 0.02)
    b, of_b = settled(Account(), P + 0.01)
    both = 2 * EARLY * 0.005 * P - 0.03
    for account in (of_b.of(a), of_a.of(b)):
        assert account.allowance == pytest.approx(both)
        assert account.spent == pytest.approx(2 * P + 0.03)
        assert account.lent == pytest.approx(2 * (EARLY - 1) * 0.005)
    many = Account()
    for _ in range(300):
        many = of_a.of(many)
    assert many.lent == LENT


def test_changes_are_the_same_in_any_order_and_together() -> None:
    """As long as the account isn't full."""
    changes = [
        settled(Account(0.5, lent=LENT), j)[1] for j in (P + 0.1, P + 0.4, P - 0.2, P + 0.05)
    ]
    for order in itertools.permutations(changes):
        account, whole = Account(0.5), order[0]
        for change in order:
            account = change.of(account)
        for change in order[1:]:
            whole = whole.plus(change)
        assert account.allowance == pytest.approx(0.5 + 4 * 0.005 * P - 0.35)
        assert whole.of(Account(0.5)).allowance == pytest.approx(account.allowance)
        assert Change.read(whole.row()) == whole


def test_an_account_holds_no_more_for_many_than_for_one() -> None:
    """Wins of all of them fill it once."""
    won = settled(Account(), 0.1)[1]
    account = Account()
    for _ in range(10):
        account = won.of(account)
    assert account.allowance == CAP * P


@pytest.mark.parametrize("lengths", [(4.0, 0.4), (1.0, 2.0, 3.0, 4.0)])
def test_short_requests_are_no_losses_to_those_who_are_told(lengths: tuple[float, ...]) -> None:
    """An account holds so many requests' worth, so it falls with a short one after a long one. A
    class that wins each time takes nothing from what all classes have."""
    rng = random.Random(1)
    classes, every = [Account()] * 3, Account()
    for _ in range(500):
        n, plain_j = rng.randrange(3), rng.choice(lengths)
        ended = Settled((None, "score", "d"), 0.7 * plain_j, plain_j)
        before, after = classes[n], classes[n].settle(ended, 0.005)
        classes[n], held = after, every.allowance
        every = Change.between(before, after, plain_j, None, lost=0.0).of(every)
        assert every.allowance >= min(held, CAP * plain_j)
    full = Account(6.0, lent=LENT)
    lost = full.settle(Settled((None, "score", "d"), 3.4, 0.4), 0.005)
    told = Change.between(full, lost, 0.4, None, lost=3.0)
    assert (lost.allowance, told.allowance) == (pytest.approx(0.6), pytest.approx(-3.0))


def test_what_was_not_told_counts_beside_others_figures() -> None:
    """An account that is taken over loses nothing of one's own."""
    accounts = Accounts(telling=True)
    change = settled(Account(), P + 0.3)[1]
    accounts.settled("policy", KEY[1:], change)
    accounts.load(KEY, Account(0.9, spent=40.0))
    found = accounts.of("policy")[KEY[1:]]
    assert found.allowance == pytest.approx(0.9 - 0.3 + EARLY * 0.005 * P)
    assert accounts.untold() == {KEY: change}
    assert accounts.untold() == {}


def test_a_leave_is_kept_while_its_class_is_planned_for() -> None:
    """Asked for at the first plan, renewed in time, for minutes after the last one, then let go."""
    clock = [0.0]
    leaves = Leaves(lambda: clock[0])
    assert leaves.withheld(KEY) == ASKED
    assert leaves.wanted() == [KEY]
    leaves.given([], LEAVE_S, [KEY])
    assert leaves.withheld(KEY) == HELD
    assert leaves.wanted() == [KEY]
    leaves.given([KEY], LEAVE_S)
    assert not leaves.withheld(KEY)
    assert leaves.wanted() == []
    while clock[0] < KEPT_S:
        clock[0] += LEAVE_S - RENEWED_S + 1
        renewed = leaves.wanted()
        leaves.given(renewed, clock[0] + LEAVE_S)
    assert leaves.wanted() == []
    clock[0] += LEAVE_S
    leaves.given([], 0.0)
    assert leaves.withheld(KEY) == ASKED


def test_a_leave_is_kept_while_something_is_tried() -> None:
    """However long that takes; one that is lost is lost."""
    clock = [0.0]
    leaves = Leaves(lambda: clock[0])
    leaves.withheld(KEY)
    leaves.given(leaves.wanted(), LEAVE_S)
    end = leaves.exploring(KEY)
    clock[0] = 2 * KEPT_S
    assert leaves.wanted() == [KEY]
    end(None)
    assert leaves.wanted() == []
    leaves.given([KEY], clock[0] + LEAVE_S)
    leaves.lost()
    assert leaves.withheld(KEY) == ASKED


def explored(together: bool, loss: float, requests: int = 400, lag: int = 7) -> float:
    """What four workers lose in all, whose requests take turns and whose every try loses
    ``loss``; what one has settled the others hear ``lag`` requests later."""
    everybody = [Accounts(telling=True) for _ in range(4)]
    on_its_way: list[tuple[int, int, Change]] = []
    lost = 0.0
    for i in range(requests):
        for due, whose, change in [each for each in on_its_way if each[0] <= i]:
            on_its_way.remove((due, whose, change))
            for n, other in enumerate(everybody):
                if n != whose:
                    other.hear(KEY, change)
        n = i % 4
        account = everybody[n].of("policy").get(KEY[1:], Account())
        leave = n == 2 or not together
        tries = leave and loss <= account.allowance
        lost += loss * tries
        after, change = settled(account, P + loss * tries)
        everybody[n].of("policy")[KEY[1:]] = after
        if together:
            on_its_way.append((i + lag, n, change))
    return lost


@pytest.mark.parametrize("loss", [0.1, 0.3, 0.9])
def test_together_workers_lose_no_more_than_one(loss: float) -> None:
    """Half a request that the first pay in, and .5 % of all that was spent."""
    bound = LENT * P + 0.005 * 400 * P
    lag = 7 * (EARLY - 1) * 0.005 * P  # Paid in too often, before all know that it is paid.
    assert 0 < explored(True, loss) <= bound + lag

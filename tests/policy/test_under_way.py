"""Requests at the same time: what one of them is trying out, the others don't."""

from __future__ import annotations

import asyncio

import pytest

from specroute import AsyncSpecRoute
from specroute.policy.account import Account
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Forecast, Plan
from specroute.speculation.planning import Chosen
from specroute.types import Exactness, Method, Report
from tests.support.copying import ask, config, repeating, words

TEXT = words(30)
CROWD = 8


def tried(told: Report) -> bool:
    """Whether it was speculated on, in vain or not."""
    return told.method != "plain" or " is tried" in told.plan_reason or "gave" in told.plan_reason


async def test_of_a_crowd_one_request_at_most_tries_a_draft() -> None:
    """Nothing was ever drafted here, so nobody knows yet what it loses."""
    with repeating(TEXT, "tpot=10ms") as server:
        async with AsyncSpecRoute(config=config(server.base_url, "latency")) as client:
            first = await ask(client, TEXT)
            assert first.method == "plain"
            crowd = await asyncio.gather(*(ask(client, TEXT) for _ in range(CROWD)))
            assert sum(map(tried, crowd)) <= 1


def test_what_is_under_way_is_not_done_twice() -> None:
    """A trial, a plain call for the yardstick, and a plan that isn't the best."""
    account = Account(1.0, spent=1000.0)
    assert account.under_way(True, False, False).trying
    assert account.under_way(False, True, False).yardstick > account.spent
    assert account.under_way(False, False, True).strayed > account.spent
    assert account.under_way(False, False, False) == account


def test_what_new_classes_may_lose_is_left_out_of_what_all_have() -> None:
    """Until their answers have ended, whatever becomes of them."""
    chosen = Chosen(Adaptive(), Exactness.BOUNDED)
    every = ("t", "")
    chosen.accounts[every] = Account(2.0)
    trials = [Plan(Method.SCORE, "d", 4, "", trial=True, risk=Forecast(0.5)) for _ in range(2)]
    ends = [chosen.begin(every, trial) for trial in trials]
    chosen.has_tried(trials[0], every)
    together = chosen.together("t")
    assert (together.allowance, together.trying) == (pytest.approx(1.0), "")
    for end in ends:
        end(None)
    assert chosen.together("t") == Account(2.0)


def test_a_trial_that_went_plain_keeps_nobody_from_trying() -> None:
    """Its answer may take a minute more. Until it is settled, what it may have lost is left out of
    what may be lost; of a plan that tries nothing there is nothing to leave out."""
    chosen = Chosen(Adaptive(), Exactness.BOUNDED)
    key = ("t", "class")
    chosen.accounts[key] = Account(2.0, dollars=0.5)
    trial = Plan(Method.SCORE, "d", 4, "", trial=True, risk=Forecast(0.5, 0.01))
    end = chosen.begin(key, trial)
    assert chosen.account(key).trying
    chosen.has_tried(trial, key, ("t", "another"))
    account = chosen.account(key)
    assert not account.trying
    assert account.allowance == pytest.approx(2.0 - 0.5 - 0.01 / 0.01)
    assert account.dollars == pytest.approx(0.49)
    end(None)
    assert chosen.account(key) == chosen.accounts[key]
    assert not chosen.under_way
    assert not chosen.tried
    chosen.has_tried(trial, key)
    assert not chosen.tried

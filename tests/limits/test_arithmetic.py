"""Windows, estimates, purses and ceilings: arithmetic alone."""

from __future__ import annotations

import json
import random
from math import inf

import pytest

from specroute.errors import CostTooHigh
from specroute.ledger import Price
from specroute.limits.ceiling import purse_for
from specroute.limits.estimate import OUTPUT, PER_IMAGE, PER_MESSAGE, Estimate, estimate, of_body
from specroute.limits.purse import Purse, current, held
from specroute.store.window import DAY, MINUTE, Want, refusal

PRICE = Price(input=1.0, output=4.0)


def test_a_window_never_holds_more_than_its_limit() -> None:
    """Calls at random times: in no 60 seconds are there more than were allowed."""
    rng = random.Random(1)
    want = Want("k", 1.0, 10.0, MINUTE)
    booked: dict[int, float] = {}
    let_through: list[float] = []
    now = 1e9
    for _ in range(2000):
        now += rng.expovariate(1.0)
        if refusal(want, booked, now) is None:
            slot = MINUTE.slot(now)
            booked[slot] = booked.get(slot, 0.0) + 1
            let_through.append(now)
    assert len(let_through) > 200
    for start in let_through:
        assert sum(start <= t < start + 60 for t in let_through) <= 10


def test_the_wait_is_as_long_as_it_takes() -> None:
    """After exactly that time there is room; a little before there is not."""
    want = Want("k", 3.0, 10.0, MINUTE)
    booked = {MINUTE.slot(1000.0): 5.0, MINUTE.slot(1010.5): 4.0}
    refused = refusal(want, booked, 1020.0)
    assert refused is not None
    assert (refused.used, refused.wait_s) == (9.0, 1000 + 61 - 1020)
    assert refusal(want, booked, 1020 + refused.wait_s) is None
    assert refusal(want, booked, 1020 + refused.wait_s - 0.01) is not None


def test_what_never_fits_waits_for_ever() -> None:
    """More than the whole limit."""
    refused = refusal(Want("k", 11.0, 10.0, MINUTE), {}, 0.0)
    assert refused is not None
    assert refused.wait_s == inf


def test_a_day_ends_at_midnight_utc() -> None:
    """1 January 2026, 23:59:59 UTC, is another day than a second later."""
    midnight = 1_767_312_000.0  # 2026-01-02T00:00:00Z
    want = Want("usd", 1.0, 5.0, DAY)
    spent = {DAY.slot(midnight - 1): 5.0}
    refused = refusal(want, spent, midnight - 1)
    assert refused is not None
    assert refused.wait_s == 1
    assert refusal(want, spent, midnight) is None


BODIES = [
    ({"messages": [{"role": "user", "content": "x" * 30}], "max_tokens": 5}, (10 + PER_MESSAGE, 5)),
    ({"messages": [{"role": "user", "content": "x" * 30}]}, (10 + PER_MESSAGE, OUTPUT)),
    ({"messages": [{"content": "é"}], "max_completion_tokens": 2, "n": 3}, (1 + PER_MESSAGE, 6)),
    ({"prompt": [1, 2, 3], "max_tokens": 4}, (3, 4)),
    ({"prompt": [[1, 2], [3]], "max_tokens": 4}, (3, 8)),
    ({"prompt": ["ab", "cd"], "max_tokens": 4, "best_of": 5}, (2, 20)),
    ({"input": "x" * 300}, (100, 0)),
    (
        {
            "messages": [
                {
                    "content": [
                        {"type": "text", "text": "xyz"},
                        {"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}},
                    ]
                }
            ],
            "max_tokens": 1,
        },
        (1 + PER_IMAGE + PER_MESSAGE, 1),
    ),
    ({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 5}}, (3, 5)),
    ({"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 5, "n": 2}}, (3, 20)),
    ({"prompt": [[1, 2], [3]], "n_predict": 4}, (3, 8)),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_an_estimate_of_a_body(body: object, expected: tuple[int, int]) -> None:
    """Texts by their bytes, ids by their number, pictures by a flat rate."""
    found = estimate(json.dumps(body).encode())
    assert (found.prompt, found.output) == expected


@pytest.mark.parametrize("content", [None, b"", b"\x89PNG", b"[1]", b"{", b"null"])
def test_what_is_no_request_counts_no_tokens(content: bytes | None) -> None:
    """Uploads, and what can't be read."""
    assert estimate(content) == Estimate(0, 0)


def test_a_purse_keeps_a_plain_answer_affordable() -> None:
    """What can be left out gets only what is over, until the plain call is under way."""
    purse = Purse(1.0, plain=0.6)
    assert purse.fits(0.4, needed=False)
    assert not purse.fits(0.41, needed=False)
    purse.reserve(0.4, needed=False)
    assert purse.fits(0.6, needed=True)
    purse.reserve(0.6, needed=True)
    assert (purse.left, purse.fits(0.01, needed=False)) == (0, False)
    purse.settle(0.4, 0.1, needed=False)
    assert purse.fits(0.3, needed=False)  # The plain answer is paid for already.
    purse.settle(0.6, 0.5, needed=True)
    assert purse.left == pytest.approx(0.4)
    assert not purse.fits(0.01, needed=False)


def test_a_purse_is_the_requests_own() -> None:
    """Inside the block, and not after it."""
    purse = Purse(1.0, 0.5)
    with held(purse):
        assert current.get() is purse
        with held(None):
            assert current.get() is None
    assert current.get() is None


BODY = {"messages": [{"role": "user", "content": "x" * 276}]}  # 92 + 8 tokens


def test_a_request_that_fits_is_left_as_it_is() -> None:
    """100 prompt tokens and 100 of the answer come to 0.0005 USD."""
    purse, cap = purse_for(0.0005, {**BODY, "max_tokens": 100}, PRICE, "lab:m")
    assert (purse.limit, cap) == (0.0005, None)


def test_an_open_answer_is_closed_by_what_the_money_lasts_for() -> None:
    """0.0001 USD for the prompt leave 100 tokens at 4 USD a million."""
    _, cap = purse_for(0.0005, BODY, PRICE, "lab:m")
    assert cap == 100
    _, cap = purse_for(0.0009, {**BODY, "n": 2}, PRICE, "lab:m")
    assert cap == 100


@pytest.mark.parametrize(
    ("most", "body", "message"),
    [
        (
            0.0005,
            {**BODY, "max_tokens": 200},
            "a plain answer by lab:m may cost 0.0009 USD, more than max_cost_usd = 0.0005: up to "
            "100 prompt tokens for 0.0001 and 200 of the answer for 0.0008; max_tokens = 100 would",
        ),
        (0.00005, BODY, "more than max_cost_usd = 5e-05: up to 100 prompt tokens for 0.0001"),
    ],
)
def test_what_can_not_fit_is_refused_with_numbers(most: float, body: object, message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(CostTooHigh) as caught:
        purse_for(most, body, PRICE, "lab:m")  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.code == "max_cost_exceeded"


def test_an_unknown_price_is_said_not_guessed() -> None:
    """It is not 0."""
    with pytest.raises(CostTooHigh, match=r"what lab:m costs is not known.*providers\.lab\.prices"):
        purse_for(1.0, BODY, None, "lab:m")
    assert of_body(BODY).usd(Price(0.0, 0.0)) == 0

"""What sharing costs: an append on a request's way, microseconds beside it, bytes a request."""

from __future__ import annotations

import json

from specroute.measure import Measurements
from specroute.measured import Kept
from specroute.sharing.hearing import heard
from specroute.sharing.names import Names
from specroute.sharing.telling import MOST_ROUNDS, Telling
from tests.measure.test_cost import best
from tests.sharing.world import DRAFT, HOW, TARGET, TRAFFIC, Worker, config

URL = "redis://127.0.0.1:1/0"


def answer(seen: Measurements, rounds: int) -> None:
    """One request of so many rounds, as a client measures it."""
    one = object()
    for i in range(rounds):
        seen.round(
            TARGET, DRAFT, TRAFFIC, drafted=4, accepted=3, judged=4, draft_s=0.02012, how=HOW,
            verify_s=0.05012 + i * 1e-5, context=1000 + i, answer=one, at=1.0,
        )  # fmt: skip
    seen.over(TARGET, DRAFT, TRAFFIC, one, HOW)
    seen.pace(TARGET, TRAFFIC, ttft_s=0.1234, tpot_s=0.0312, tokens=80, context=1000, at=1.0)
    seen.answer(TARGET, TRAFFIC, 80, 1.0)


def message(seen: Measurements, requests: int, rounds: int) -> bytes:
    """What so many requests tell."""
    made = config(URL)
    telling = Telling(Names(made, Kept(made)))
    seen.heard = telling.add
    for _ in range(requests):
        answer(seen, rounds)
    import random

    return json.dumps(telling.taken(random.Random(1)), separators=(",", ":")).encode()


def test_being_heard_takes_a_request_less_than_five_microseconds() -> None:
    """For each observation."""
    worker = Worker(URL)
    note = ("verify_time", TARGET, HOW, 0.05, 1000, 4)
    assert best(lambda: worker.sharing.told(note), times=400) < 5


def test_an_observation_of_others_takes_less_than_a_hundred_microseconds() -> None:
    """Read from JSON, checked and entered."""
    made, seen = config(URL), Measurements()
    names = Names(made, Kept(made))
    text = message(Measurements(), 10, 20)
    n = sum(n for n, _ in heard(seen, json.loads(text), names, alike=True, at=1.0))

    def hear() -> None:
        for _, enter in heard(seen, json.loads(text), names, alike=True, at=1.0):
            enter()

    assert n > 400
    assert best(hear, times=2, repeats=10) / n < 100


def test_a_request_is_a_few_hundred_bytes_however_many_rounds_it_has() -> None:
    """Its rounds are told together, and no more than so many of them."""
    few, many = len(message(Measurements(), 20, 8)) / 20, len(message(Measurements(), 20, 300)) / 20
    assert few < 700
    assert many < 1200
    told = json.loads(message(Measurements(), 1, 300))
    assert len(told["passed"][0]) == 5 + 3 * MOST_ROUNDS
    # A crowd is no more than one message can hold.
    assert len(message(Measurements(), 250, 20)) < 25_000

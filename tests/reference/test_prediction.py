"""How an answer follows its prediction: which tokens are accepted, and when they come faster."""

from __future__ import annotations

import time

import pytest

from specroute.reference.prediction import SLOW, Prediction
from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

pytestmark = pytest.mark.alone


def follow(prediction: Prediction, tokens: list[int]) -> list[bool]:
    """Whether the next token may come in the same step, after each of ``tokens``."""
    fast = []
    for token in tokens:
        prediction.follow(token)
        fast.append(prediction.fast)
    return fast


def test_an_answer_that_is_the_prediction_is_accepted_whole() -> None:
    """And nothing is fast any more behind its end."""
    prediction = Prediction(range(10))
    assert follow(prediction, [*range(10), 99]) == [True] * 9 + [False, False]
    assert (prediction.accepted, prediction.rejected) == (10, 0)


def test_after_a_mismatch_eight_tokens_come_slowly_and_the_place_is_found_again() -> None:
    """The tokens that were left out are rejected; those found again are not tied to a place."""
    prediction = Prediction(range(40))
    fast = follow(prediction, [0, 1, 99, *range(4, 20)])
    assert fast[:3] == [True, True, False]
    assert fast[3 : 3 + SLOW] == [False] * (SLOW - 1) + [True]
    assert (prediction.accepted, prediction.rejected) == (2 + 16, 40 - 18)


def test_nothing_that_came_is_taken_twice() -> None:
    """A repeated passage finds only what follows in the prediction."""
    prediction = Prediction([1, 2, 3, 4])
    follow(prediction, [1, 2, 3, 4, 1, 2, 3, 4])
    assert (prediction.accepted, prediction.rejected) == (4, 0)


def test_a_followed_prediction_comes_sixteen_times_as_fast() -> None:
    """64 tokens in four steps, and the first of them no earlier."""
    words = [f" w{i}" for i in range(63)]
    text = "".join(words)
    script = {"vocabulary": words, "answers": [{"text": text}]}
    with ReferenceServer(script, pace="tpot=20ms") as server, Http(server) as api:

        def seconds(**body: object) -> float:
            started = time.perf_counter()
            answer = api.chat(messages=messages("go"), **body)
            assert answer["choices"][0]["message"]["content"] == text
            return time.perf_counter() - started

        plain = seconds()
        predicted = min(seconds(prediction={"type": "content", "content": text}) for _ in range(3))
    assert plain > 64 * 0.02
    assert predicted < plain / 6

"""Continuous batching: who is in a step, who waits, who leaves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from specroute.draft import stepper
from specroute.draft.stepper import Asking, Halted, Stepper


class Cache:
    def __init__(self, name: str) -> None:
        self.name, self.ids = name, [0]
        self.ids.clear()


class Recorder:
    """A decoder that writes down its steps; each waits for a turn of ``gate`` if there is one."""

    batches, pool, forwarded = True, None, 0

    def __init__(self, gated: bool = False) -> None:
        self.steps: list[dict[str, int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0) if gated else None
        self.broken: str | None = None

    def forward(self, ids: Sequence[int], cache: Any) -> Any:
        return self.forward_many([(ids, cache)])[0]

    def forward_many(self, batch: Sequence[tuple[Sequence[int], Any]]) -> Any:
        self.entered.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=10)
        if self.broken in [cache.name for _, cache in batch]:
            raise ValueError(f"{self.broken} is broken")
        self.steps.append({cache.name: len(ids) for ids, cache in batch})
        return [sum(ids) for ids, _ in batch]


def asking(name: str, *parts: int, seen: list[Any] | None = None) -> Asking[str]:
    """A job that forwards parts of these lengths and then returns its name."""
    for part in parts:
        logits = yield [1] * part, Cache(name)
        if seen is not None:
            seen.append(logits)
    return name


def never() -> bool:
    return False


def outcome(future: Future[Any]) -> Any:
    return future.result(timeout=10)


def test_drafts_share_steps_and_join_between_them() -> None:
    """The second comes while the first is in a step, and is in the next one."""
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    first = steps.submit(asking("a", 1, 1, 1), never)
    assert decoder.entered.acquire(timeout=10)
    second = steps.submit(asking("b", 1, 1), never)
    decoder.gate.release(10)
    assert (outcome(first), outcome(second)) == ("a", "b")
    assert decoder.steps == [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    steps.close()


def test_a_prompt_is_read_in_blocks_smaller_ones_beside_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long prompt doesn't hold up who is drafting; its job sees only the last logits."""
    monkeypatch.setattr(stepper, "BLOCK", 100)
    monkeypatch.setattr(stepper, "BLOCK_BESIDE", 10)
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    first = steps.submit(asking("a", 1, 1, 1), never)
    assert decoder.entered.acquire(timeout=10)
    seen: list[Any] = []
    second = steps.submit(asking("b", 125, seen=seen), never)
    decoder.gate.release(10)
    assert (outcome(first), outcome(second)) == ("a", "b")
    assert decoder.steps == [{"a": 1}, {"a": 1, "b": 10}, {"a": 1, "b": 10}, {"b": 100}, {"b": 5}]
    assert seen == [5]
    steps.close()


def test_prompts_are_read_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block goes to the first, what is left of it to the next."""
    monkeypatch.setattr(stepper, "BLOCK", 100)
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    futures = [steps.submit(asking("a", 1), never)]
    assert decoder.entered.acquire(timeout=10)
    futures += [steps.submit(asking(name, 70), never) for name in "bcd"]
    decoder.gate.release(10)
    assert list(map(outcome, futures)) == list("abcd")
    assert decoder.steps[1:] == [{"b": 70, "c": 30}, {"c": 40, "d": 60}, {"d": 10}]
    steps.close()


def test_who_finds_no_place_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MOST at once, the others in order."""
    monkeypatch.setattr(stepper, "MOST", 2)
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    futures = [steps.submit(asking("a", 1, 1), never)]
    assert decoder.entered.acquire(timeout=10)
    futures += [steps.submit(asking(name, 1, 1), never) for name in "bcd"]
    decoder.gate.release(20)
    assert list(map(outcome, futures)) == list("abcd")
    assert max(map(len, decoder.steps)) == 2
    assert [sorted(step) for step in decoder.steps] == [
        ["a"],
        ["a", "b"],
        ["b", "c"],
        ["c", "d"],
        ["d"],
    ]
    steps.close()


def test_a_cancelled_draft_is_gone_at_the_next_step() -> None:
    """It is told, and the others go on; one that was still waiting never starts."""
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    gone: set[str] = set()
    first = steps.submit(asking("a", *([1] * 50)), lambda: "a" in gone)
    assert decoder.entered.acquire(timeout=10)
    second = steps.submit(asking("b", 1), lambda: "b" in gone)
    third = steps.submit(asking("c", 1), lambda: "c" in gone)
    gone |= {"a", "c"}
    decoder.gate.release(10)
    with pytest.raises(Halted):
        outcome(first)
    with pytest.raises(Halted):
        outcome(third)
    assert outcome(second) == "b"
    assert decoder.steps == [{"a": 1}, {"b": 1}]
    steps.close()


def test_a_fault_ends_only_whose_it_is() -> None:
    """The step is repeated for each alone."""
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    first = steps.submit(asking("a", 1, 1), never)
    assert decoder.entered.acquire(timeout=10)
    second = steps.submit(asking("b", 1), never)
    decoder.broken = "b"
    decoder.gate.release(20)
    assert outcome(first) == "a"
    with pytest.raises(ValueError, match="b is broken"):
        outcome(second)
    steps.close()


def test_closing_ends_what_runs_and_what_waits() -> None:
    """Nobody waits for ever, and nothing new is taken."""
    decoder = Recorder(gated=True)
    steps = Stepper(decoder, "t")
    first = steps.submit(asking("a", *([1] * 50)), never)
    assert decoder.entered.acquire(timeout=10)
    second = steps.submit(asking("b", 1), never)
    steps.close()
    decoder.gate.release(10)
    for future in (first, second):
        with pytest.raises(Halted):
            outcome(future)
    with pytest.raises(RuntimeError, match="closed"):
        steps.submit(asking("c", 1), never)


def test_the_thread_rests_between_drafts() -> None:
    """It works again for whoever comes later."""
    decoder = Recorder()
    steps = Stepper(decoder, "t")
    for name in "abc":
        assert outcome(steps.submit(asking(name, 3, 1), never)) == name
    assert steps.steps == 6
    steps.close()

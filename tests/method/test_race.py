"""``race``: the draft's answer where it begins like the target's, else the target's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specroute import Commit, Provisional
from specroute.method.race import WORDS, agreement, words
from tests.engine.answers import ask
from tests.engine.test_exits import quiet
from tests.method.world import two
from tests.provisional.test_speculate import CHAT, follow

pytestmark = pytest.mark.alone

HEAD = "Thank you for asking, your order was sent on Monday and will"
TARGET = HEAD + " be with you on Thursday. " + "We are glad that you wrote. " * 10
ALIKE = HEAD.replace("asking,", "Asking") + " reach you on Thursday, as was said."
OTHER = "I can not find any order of yours in the books of this shop, so sorry for that."


def answers() -> list[dict[str, Any]]:
    return [{"when": "go", "text": TARGET}]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_draft_that_begins_alike_is_the_answer(stream: bool) -> None:
    """Whole, from its start: what was handed on before is what both said."""
    async with two(
        "race", answers(), ALIKE, pace="ttft=300ms,tpot=4ms", draft_pace="tpot=1ms"
    ) as world:
        got = await ask(world.client, stream=stream)
        report = got.report
        assert report is not None
        assert got.finish == "stop"
        assert got.text == ALIKE
        assert (report.method, report.exactness) == ("race", "heuristic")
        assert any("the draft's answer: 100%" in note for note in report.notes)
        left = next(a for a in report.attempts if a.purpose == "plain")
        assert left.outcome == "cancelled" and left.estimated
        assert (left.usage.completion_tokens or 99) < 3 * WORDS
        await quiet(world.target)


async def test_another_beginning_is_the_targets_answer() -> None:
    """And the draft ends at once."""
    long = OTHER * 20
    async with two(
        "race", answers(), long, pace="ttft=100ms,tpot=3ms", draft_pace="tpot=4ms"
    ) as world:
        got = await ask(world.client)
        assert (got.text, got.finish) == (TARGET, "stop")
        assert got.report is not None
        (left,) = [a for a in got.report.attempts if a.purpose == "draft"]
        assert left.outcome == "cancelled" and left.estimated
        assert world.draft.log[0].cancelled
        assert left.seconds < 0.6 * (got.report.total_s or 0)
        assert any("the target's answer" in note for note in got.report.notes)
        assert world.billed(got.report)
        await quiet(world.draft)


async def test_a_draft_that_can_not_win_any_more_holds_nothing_back() -> None:
    """The target's words are handed on as soon as too many differ, not after all that decide."""
    async with two("race", answers(), OTHER, pace="ttft=150ms,tpot=5ms") as world:
        text, events = await follow(world.client)
        assert text == TARGET
        first = next(e.text for e in events if isinstance(e, Commit))
        assert len(words(first)) <= WORDS / 2
        notes = events[-1].report.notes
        assert any("could no longer win" in note for note in notes)
        assert events[-1].report.accepted < events[-1].report.drafted


async def test_a_draft_that_is_late_has_lost() -> None:
    """However alike it would have been."""
    async with two("race", answers(), ALIKE, pace="tpot=1ms", draft_pace="ttft=5s") as world:
        got = await ask(world.client)
        assert got.text == TARGET
        await quiet(world.draft)


@pytest.mark.parametrize("broken", ["refused", "gone"])
async def test_a_failing_draft_leaves_the_targets_answer(broken: str) -> None:
    """Its error is a note."""
    options = {"draft_options": {"api_key": "other"}} if broken == "refused" else {}
    async with two("race", answers(), ALIKE, pace="tpot=1ms", **options) as world:
        if broken == "gone":
            world.draft.stop()
        got = await ask(world.client)
        assert (got.text, got.finish) == (TARGET, "stop")
        assert got.report is not None
        assert any("failed" in note for note in got.report.notes)


async def test_under_load_the_answer_comes_sooner() -> None:
    """At a slow target: its first words instead of all of them; the cost is in the report."""
    async with two(
        "race", answers(), ALIKE, pace="ttft=300ms,tpot=12ms", draft_pace="tpot=1ms"
    ) as world:
        plain = world.client.with_options(policy={"preset": "fixed", "method": "plain"})
        slow = [(await ask(plain)).report for _ in range(2)]
        fast = [(await ask(world.client)).report for _ in range(2)]
        assert min(r.total_s or 9 for r in fast if r) < 0.8 * min(r.total_s or 0 for r in slow if r)
        assert all(r is not None and r.cost_usd is not None for r in fast)


async def test_the_draft_is_on_the_screen_first() -> None:
    """Corrected where the target wins."""
    async with two("race", answers(), OTHER, pace="ttft=150ms,tpot=1ms") as world:
        text, events = await follow(world.client)
        assert text == TARGET
        assert isinstance(events[0], Provisional)


async def test_max_tokens_and_stop_strings_hold() -> None:
    """For the target's answer to the token; for the draft's as far as its provider counts."""
    async with two("race", answers(), OTHER, pace="tpot=1ms") as world:
        plain = world.client.with_options(policy={"preset": "fixed", "method": "plain"})
        expected = await ask(plain, max_tokens=20)
        got = await ask(world.client, max_tokens=20)
        assert (got.text, got.finish) == (expected.text, expected.finish)
    async with two(
        "race", answers(), ALIKE, pace="ttft=300ms,tpot=4ms", draft_pace="tpot=1ms"
    ) as world:
        got = await ask(world.client, max_tokens=18)
        assert got.finish == "length" and ALIKE.startswith(got.text)
        got = await ask(world.client, stop=" on Thursday")
        assert got.finish == "stop" and got.text == ALIKE.partition(" on Thursday")[0]


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1, 0.2])
async def test_leaving_ends_both(after: float) -> None:
    """At any point, within 100 ms."""
    async with two(
        "race", answers(), ALIKE, pace="ttft=50ms,tpot=10ms", draft_pace="tpot=10ms"
    ) as world:
        task = asyncio.create_task(ask(world.client, stream=False))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait([task])
        await quiet(world.target)
        await quiet(world.draft)


async def test_what_both_have_said_is_booked_when_the_caller_leaves() -> None:
    """Counted here, since neither server's own count came."""
    async with two(
        "race", answers(), ALIKE, pace="ttft=40ms,tpot=10ms", draft_pace="tpot=10ms"
    ) as world:
        stream = world.client.speculate(model="m", messages=CHAT, temperature=0)
        async with stream:
            async for event in stream:
                if isinstance(event, Commit):
                    break
        report = stream.report
        assert not report.complete
        assert {a.purpose: a.outcome for a in report.attempts} == {
            "draft": "cancelled",
            "plain": "cancelled",
        }
        assert all(a.estimated and a.usage.completion_tokens for a in report.attempts)


def test_words_are_compared_loosely_and_in_place() -> None:
    """Case and punctuation at their ends don't count; an inserted word shifts all that follow."""
    assert agreement(words("Hello, World!"), words("hello world")) == 1
    assert agreement(words("one two three four"), words("one three four")) == 0.25
    assert agreement([], ["a"]) == 0
    assert agreement(["a", "b"], ["a"]) == 0.5

"""``judge``: a verdict on the draft; anything that is none means a plain answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from specroute import Provisional, reports
from specroute.draft.ngram import split_pieces
from specroute.errors import BadAnswer
from specroute.method.judge import SCHEMA, Opinion, parts, question, read
from tests.engine.answers import ask
from tests.engine.test_exits import active, quiet, until
from tests.method.world import two
from tests.provisional.test_speculate import follow

DRAFT = "The parcel left on Monday. It weighs two kilos. It will be there tomorrow."
PLAIN = "Your parcel is on its way."


def answers(verdict: str) -> list[dict[str, Any]]:
    return [{"when": "in numbered", "text": verdict}, {"when": "go", "text": PLAIN}]


def verdict(accepted: Any, correction: Any = "") -> str:
    return json.dumps({"accepted": accepted, "correction": correction})


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (verdict(3), DRAFT),
        (f"```json\n{verdict(3)}\n```", DRAFT),
        (f"```\n{verdict(3)}\n```\n", DRAFT),
        (verdict(2, "It will be there on Friday."),
         DRAFT.replace("tomorrow", "on Friday")),
        (verdict(1, "It is lost."), PLAIN),  # 36 %: less than min_accept
        (verdict(0), PLAIN),
        (verdict(2), PLAIN),  # something is missing, and it doesn't say what
        ("The draft is good.", PLAIN),
        (verdict(3)[:14], PLAIN),  # cut short
        (verdict("3"), PLAIN),
        (verdict(True), PLAIN),
        (verdict(4), PLAIN),
        (verdict(-1), PLAIN),
        (verdict(3, 5), PLAIN),
        ("[3]", PLAIN),
        ("", PLAIN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_the_verdict_decides(said: str, text: str, stream: bool) -> None:
    """The draft, the draft with a correction, or a plain answer; always one short request first."""
    policy = {"min_accept": 0.6}
    async with two("judge", answers(said), DRAFT, policy=policy) as world:
        got = await ask(world.client, stream=stream)
        assert (got.text, got.finish) == (text, "stop")
        report = got.report
        assert report is not None
        purposes = [a.purpose for a in report.attempts]
        if text == PLAIN:
            assert report.method == "plain" and purposes == ["draft", "judge", "plain"]
            assert any("judge" in note or "made anew" in note for note in (
                *report.notes, report.plan_reason))  # fmt: skip
        else:
            assert (report.method, report.exactness) == ("judge", "heuristic")
            assert purposes == ["draft", "judge"]
            assert any("parts" in note for note in report.notes)
        assert world.billed(report)


async def test_it_asks_once_with_a_schema_and_without_where_that_is_refused() -> None:
    """And remembers; the request carries the conversation and few tokens."""
    async with two("judge", answers(verdict(3)), DRAFT, disable=["response_format"]) as world:
        first, second = await ask(world.client), await ask(world.client)
        assert first.text == second.text == DRAFT
        assert first.report is not None and second.report is not None
        assert [a.outcome for a in first.report.attempts if a.purpose == "judge"] == [
            "status 400",
            "ok",
        ]
        assert [a.outcome for a in second.report.attempts if a.purpose == "judge"] == ["ok"]
    assert SCHEMA["json_schema"]["schema"]["required"] == ["accepted", "correction"]


async def test_it_is_never_used_unasked() -> None:
    """Under the usual floor the request goes plain, and the report says why."""
    async with two("judge", answers(verdict(3)), DRAFT, policy={"exactness": "bounded"}) as world:
        got = await ask(world.client)
        assert got.text == PLAIN
        assert got.report is not None
        assert "heuristic" in got.report.plan_reason
        assert world.draft.log == []


async def test_a_draft_that_does_not_end_is_not_judged() -> None:
    """One that was cut by ``max_tokens`` is, and ends as a plain answer would."""
    async with two("judge", answers(verdict(2)), DRAFT) as world:
        got = await ask(world.client, max_tokens=10)
        assert got.report is not None
        assert got.report.method == "judge"
        assert got.finish == "length"
        assert DRAFT.startswith(got.text)


async def test_a_corrected_answer_is_no_longer_than_max_tokens() -> None:
    """However long the correction is: it ends as a plain answer that is cut does."""
    said = verdict(2, "It will be there on Friday, or on any other day of that same week. " * 3)
    async with two("judge", answers(said), DRAFT, policy={"min_accept": 0.5}) as world:
        got = await ask(world.client, max_tokens=20)
        assert got.report is not None and got.report.method == "judge"
        assert got.finish == "length"
        assert len(split_pieces(got.text)) == 20
        assert got.text.startswith("The parcel left on Monday. It weighs two kilos. It will be")


async def test_stop_strings_end_the_answer() -> None:
    """As in any other answer."""
    async with two("judge", answers(verdict(3)), DRAFT) as world:
        got = await ask(world.client, stop=" weighs")
        assert (got.text, got.finish) == ("The parcel left on Monday. It", "stop")


async def test_the_draft_is_on_the_screen_while_it_is_judged() -> None:
    """And committed when it was found good."""
    async with two("judge", answers(verdict(3)), DRAFT, pace="ttft=150ms") as world:
        text, events = await follow(world.client)
        assert text == DRAFT
        assert isinstance(events[0], Provisional)
        assert events[-1].report.first_text_s < events[-1].report.ttft_s


@pytest.mark.parametrize("after", [0.0, 0.05, 0.12])
async def test_leaving_ends_draft_and_verdict(after: float) -> None:
    """Within 100 ms, and what was spent is booked."""
    async with two(
        "judge", answers(verdict(3)), DRAFT, pace="ttft=5s", draft_pace="ttft=60ms,tpot=1ms"
    ) as world:
        with reports() as seen:
            task = asyncio.create_task(ask(world.client, stream=False))
            await asyncio.sleep(after)
            task.cancel()
            await asyncio.wait([task])
        await quiet(world.target)
        await quiet(world.draft)
        for report in seen:
            assert report.cost_usd is not None
            assert all(a.estimated for a in report.attempts if a.outcome == "cancelled")


async def test_a_verdict_that_was_left_is_reckoned_by_what_was_sent() -> None:
    """The conversation, the draft and the question; no output, since nobody knows of any."""
    async with two("judge", answers(verdict(3)), DRAFT, pace="tpot=2s") as world:
        with reports() as seen:
            task = asyncio.create_task(ask(world.client, stream=False))
            await until(lambda: bool(active(world.target)))
            task.cancel()
            await asyncio.wait([task])
        (report,) = seen
        left = report.attempts[-1]
        assert (left.purpose, left.outcome, left.estimated) == ("judge", "cancelled", True)
        assert (left.usage.prompt_tokens or 0) > 100 and left.usage.completion_tokens == 0
        assert report.cost_usd


@pytest.mark.parametrize(
    "text",
    [
        "One. Two! Three? Four",
        "a\nb\n\n- c\n",
        "没有。有！好",
        "no end",
        " . . ",
        "1.5 is not two.",
    ],
)
def test_the_parts_are_the_draft(text: str) -> None:
    """Nothing is lost between them."""
    assert "".join(parts(text)) == text
    assert all(parts(text))


def test_the_question_numbers_the_parts() -> None:
    """After the conversation as it was."""
    asked = question([{"role": "user", "content": "go"}], parts(DRAFT))
    assert asked[0] == {"role": "user", "content": "go"}
    assert "[3] It will be there tomorrow." in asked[1]["content"]


def test_a_verdict_is_read_strictly() -> None:
    """More than it needs is no fault, another shape is."""
    assert read('{"accepted": 2, "why": "fine"}', 3) == Opinion(2, "")
    with pytest.raises(BadAnswer, match="expected 0 to 1"):
        read('{"accepted": 2}', 1)

"""A caller who is cancelled at any turn of the event loop, once or twice, leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from specroute import SpecRouteError
from specroute.testing import On, faults
from tests.engine.answers import TEXT
from tests.faults.cells import MESSAGES, SETUPS, World, own, world

AGAIN = 1
"""Turns between two cancellations: what the first has ended is being tidied up."""
MOST_TURNS = 1000
DOLLAR_A_TOKEN = {
    "limits": {"rpm": 1e6, "tpm": 1e9},
    "prices": {"input": 0.0, "output": 1e6},
}
"""So that what is booked can be told by the tokens that came."""
Ask = Callable[[World], Awaitable[str]]
BODY = {"temperature": 0, "max_tokens": 40}


async def whole(made: World) -> str:
    create: Any = made.client.chat.completions.create
    answer = await create(model="m", messages=MESSAGES, **BODY)
    return str(answer.choices[0].message.content)


async def streamed(made: World, pieces: float = float("inf")) -> str:
    """The text; of a stream that is left after so many pieces, what had come."""
    create: Any = made.client.chat.completions.create
    stream = await create(model="m", messages=MESSAGES, stream=True, **BODY)
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        pieces -= 1
        if pieces <= 0:
            await stream.close()
            break
    return text


async def left(made: World) -> str:
    return await streamed(made, 3)


@asynccontextmanager
async def asked(setup: str, *rules: On) -> AsyncIterator[tuple[World, set[str]]]:
    """A client whose target is known, with limits and a budget to keep, and what remains of its
    first requests: tasks that wait for others to come."""
    async with world(SETUPS[setup], provider=DOLLAR_A_TOKEN, daily_usd=1e9, max_retries=0) as made:
        for _ in range(2):
            await whole(made)
        standing = set(await quiet(made, set()))
        assert all(each.startswith("the task") for each in standing), standing
        made.servers[0].play(*rules)
        yield made, standing


def remains(made: World) -> Iterator[str]:
    """What of a request is still there, in words."""
    router: Any = made.client.router
    pool = router.http_client._transport._pool
    yield from (f"the pool's place of {each}" for each in pool._requests)
    yield from (f"{each} in use" for each in pool.connections if not each.is_idle())
    yield from (f"the task {task.get_name()}" for task in router.supervisor._tasks)
    if made.drafter.open_sessions:
        yield f"{made.drafter.open_sessions} draft sessions"
    speculation = router.speculation
    if speculation is None:
        return
    if speculation._under_way:
        yield f"{speculation._under_way} requests of the speculator's"
    for chosen in speculation._planning._policies.values():
        yield from (f"a plan on trial of {key}" for key in (*chosen.under_way, *chosen.tried))
    measured = speculation.measurements
    for name, target in measured.targets.items():
        if target.in_flight or any(target.crowd._counts):
            yield f"a crowd at {name}: {target.in_flight}, {target.crowd._counts}"
        yield from (f"who follows {plan}" for plan, seen in target.together.items() if seen.busy)
    for name, draft in measured.drafts.items():
        if draft.crowd._now:
            yield f"{draft.crowd._now} drafts of {name}"


async def quiet(made: World, standing: set[str]) -> list[str]:
    """What still remains once everything has had its turns to end."""
    found: list[str] = []
    for _ in range(MOST_TURNS):
        found = [each for each in remains(made) if each not in standing]
        if not found and all(each.ended is not None for each in made.servers[0].requests):
            return []
        await asyncio.sleep(0)
    return found


def booked_usd(made: World) -> float:
    """What the day's budget counts as spent or reserved."""
    store: Any = made.client.router._store
    return float(sum(store._sums.get("usd", {}).values()))


async def cancelled(
    made: World, ask: Ask, turns: int, times: int, standing: set[str]
) -> tuple[bool, list[str]]:
    """(whether it ended by itself, what is wrong) of a request that is cancelled after so many
    turns of the loop, and again."""
    made.reports.clear()
    made.servers[0].forget()
    before = booked_usd(made)
    task = asyncio.ensure_future(ask(made))
    for _ in range(turns):
        await asyncio.sleep(0)
    by_itself = task.done()
    for _ in range(times):
        task.cancel()
        for _ in range(AGAIN):
            await asyncio.sleep(0)
    await asyncio.wait([task])
    wrong = await quiet(made, standing)
    if not task.cancelled() and task.exception() is not None:
        if not isinstance(task.exception(), SpecRouteError):
            wrong.append(f"not our kind of error: {task.exception()!r}")
    elif not task.cancelled() and not TEXT.startswith(task.result()):
        wrong.append(f"not the answer: {task.result()!r}")
    if not (by_itself or task.cancelled()):
        wrong.append("the cancellation was swallowed")
    seen = [r for r in made.servers[0].requests if not r.path.endswith("tokenize")]
    reports = own(made.reports)
    if len(reports) != 1 and seen:
        wrong.append(f"{len(reports)} reports")
    attempts = [a for report in reports for a in report.attempts if a.purpose != "render"]
    if len(attempts) < len(seen):
        wrong.append(f"{len(seen)} calls came, the report has {len(attempts)}")
    tokens = sum(a.usage.completion_tokens or 0 for a in attempts)
    if booked_usd(made) - before != tokens:
        wrong.append(f"{tokens} tokens came, {booked_usd(made) - before:g} are booked")
    return by_itself, wrong


async def swept(made: World, ask: Ask, step: int, times: int, standing: set[str]) -> None:
    """Cancelled after every ``step`` turns until it ends by itself: each time nothing remains."""
    ended = 0
    for turns in count(0, step):
        by_itself, wrong = await cancelled(made, ask, turns, times, standing)
        assert not wrong, f"after {turns} turns"
        if by_itself:
            break
        ended += 1
    assert ended > 20


HANGS = On(faults.stall(4))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("setup", "ask", "rules", "step"),
    [
        ("plain", whole, (), 1),
        ("plain", left, (HANGS,), 1),
        ("score/echo", whole, (), 5),  # A round takes 14 turns: in the end each has its own.
        ("score/in flight", streamed, (), 3),
        ("prefix", whole, (), 2),
        ("prefix", left, (HANGS,), 1),
        ("hedge", left, (HANGS,), 1),
        ("race", whole, (), 1),
    ],
)
async def test_nothing_remains(
    setup: str, ask: Ask, rules: tuple[On, ...], step: int, times: int
) -> None:
    """After 0, 1, 2 … turns until the answer is there: no place in the pool, no reservation, no
    task, draft or plan under way is left; the report has every call and the budget what came."""
    async with asked(setup, *rules) as (made, standing):
        await swept(made, ask, step, times, standing)


@pytest.mark.parametrize("times", [1, 2])
async def test_nothing_remains_of_a_broken_answer(times: int) -> None:
    """While a stream that broke off is tidied up, too, by drafts that take their time."""
    async with asked("race", On(faults.cut(4))) as (made, standing):
        made.drafter.closes = 5
        await swept(made, streamed, 1, times, standing)


async def test_a_draft_that_fails_to_close_spoils_no_answer() -> None:
    """It is a note in the report."""
    async with asked("score/echo") as (made, _):
        made.reports.clear()
        made.drafter.mode = "close"
        assert await whole(made) == TEXT
        (report,) = own(made.reports)
        assert any("OSError" in note for note in report.notes)

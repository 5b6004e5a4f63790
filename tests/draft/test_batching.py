"""Many requests at one local model: each gets the draft it would have got alone."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
import torch

from specroute.context import Committed, Prompt
from specroute.draft.llama import PAGE
from specroute.draft.local import LocalDrafter
from specroute.draft.pages import OutOfPages
from specroute.errors import DraftError
from specroute.vocabulary import load_vocabulary


@pytest.fixture
def vocabulary(folder):
    return load_vocabulary(folder)


def prompts(n, seed=5, head=()):
    rng = random.Random(seed)
    return [
        Prompt(None, None, (*head, *(rng.randrange(5, 390) for _ in range(rng.randrange(3, 90)))))
        for _ in range(n)
    ]


async def drafts(drafter, vocabulary, asked, rounds, temperature=0.0, together=True):
    """What each of ``asked`` is drafted in rounds of which a part is committed."""

    async def one(prompt):
        session = await drafter.open(prompt, vocabulary)
        committed, seen = (), []
        for k, kept in rounds:
            proposal = await session.propose(Committed("", committed), k, temperature)
            seen.append(proposal.ids)
            committed += (*proposal.ids[:kept], 17)
        await session.aclose()
        return seen

    if together:
        return await asyncio.gather(*map(one, asked))
    return [await one(prompt) for prompt in asked]


ROUNDS = [(4, 4), (6, 2), (1, 0), (5, 3)]


async def test_drafts_made_together_are_those_made_alone(folder, vocabulary):
    """Greedy, 24 prompts of different lengths, some of each round refused."""
    alone, together = (LocalDrafter(n, str(folder), device="cpu") for n in ("alone", "together"))
    asked = prompts(24)
    expected = await drafts(alone, vocabulary, asked, ROUNDS, together=False)
    assert await drafts(together, vocabulary, asked, ROUNDS) == expected
    assert together._stepper.steps < alone._stepper.steps / 6
    await alone.aclose()
    await together.aclose()


async def test_drawn_drafts_come_from_the_same_q(folder, vocabulary):
    """The q of a step made together is that of one made alone, up to rounding."""
    alone, together = (
        LocalDrafter(n, str(folder), device="cpu", generator=lambda: np.random.default_rng(1))
        for n in ("alone", "together")
    )
    asked = prompts(8)
    qs = []
    for drafter in (alone, together):
        sessions = [await drafter.open(prompt, vocabulary) for prompt in asked]
        calls = [session.propose(Committed("", ()), 1, 1.0) for session in sessions]
        made = [await call for call in calls] if drafter is alone else await asyncio.gather(*calls)
        qs.append(np.array([proposal.q[0] for proposal in made]))
        await drafter.aclose()
    assert np.abs(qs[0] - qs[1]).max() < 1e-5


async def test_a_common_beginning_is_read_once(folder, vocabulary):
    """A system prompt that all requests share goes through the model for the first alone."""
    head = tuple(range(5, 5 + 3 * PAGE))
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    asked = prompts(10, head=head)
    await drafts(drafter, vocabulary, asked[:1], [(2, 1)])
    before = drafter.forwarded
    got = await drafts(drafter, vocabulary, asked[1:], [(2, 1)])
    own = sum(len(prompt.ids) - len(head) + 1 for prompt in asked[1:])
    assert drafter.forwarded - before == own
    fresh = LocalDrafter("fresh", str(folder), device="cpu")
    assert await drafts(fresh, vocabulary, asked[1:], [(2, 1)], together=False) == got
    await drafter.aclose()
    await fresh.aclose()


async def test_memory_is_bounded_and_what_was_evicted_is_read_again(folder, vocabulary):
    """Pages for a few sequences only: the same drafts, never more pages."""
    roomy, tight = (LocalDrafter(n, str(folder), device="cpu") for n in ("roomy", "tight"))
    asked = prompts(12)
    expected = await drafts(roomy, vocabulary, asked, ROUNDS, together=False)
    await tight.load()
    pool = tight._loaded.decoder.pool
    pool.most = 6
    assert await drafts(tight, vocabulary, asked, ROUNDS, together=False) == expected
    sessions = [await tight.open(prompt, vocabulary) for prompt in asked]
    for session, seen in zip(sessions, expected, strict=True):  # more open than pages can hold
        assert (await session.propose(Committed("", ()), 4)).ids == seen[0]
    assert pool.made <= 6
    for session in sessions:
        await session.aclose()
    assert pool.used == 0
    await roomy.aclose()
    await tight.aclose()


@pytest.mark.parametrize("pages", [5, 9])
async def test_who_finds_no_memory_waits_for_those_who_have_it(folder, vocabulary, pages):
    """Too many at once for the pages there are: all are drafted, some later, and what had to be
    given up meanwhile is read again."""
    roomy, tight = (LocalDrafter(n, str(folder), device="cpu") for n in ("roomy", "tight"))
    asked = prompts(12)
    expected = await drafts(roomy, vocabulary, asked, [(20, 20)], together=False)
    await tight.load()
    pool = tight._loaded.decoder.pool
    pool.most = pages

    async def one(prompt):
        session = await tight.open(prompt, vocabulary)
        try:
            return (await session.propose(Committed("", ()), 20)).ids
        finally:
            await session.aclose()

    assert await asyncio.gather(*map(one, asked)) == [seen[0] for seen in expected]
    assert (pool.made <= pages, pool.used) == (True, 0)
    assert await drafts(tight, vocabulary, asked, [(20, 20)], together=False) == expected
    await roomy.aclose()
    await tight.aclose()


async def test_a_page_is_copied_although_another_found_no_room(folder):
    """Two in a pass, one on a page that it shares: that the other one doesn't fit changes nothing
    in what the first goes on from."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    await drafter.load()
    decoder = drafter._loaded.decoder
    shared = [5 + i % 40 for i in range(2 * PAGE)]
    with torch.inference_mode():
        decoder.pool.most = 4
        first = decoder.new()
        decoder.forward(shared, first)
        second, third = decoder.new([*shared, 1]), decoder.new()
        assert second.pages == first.pages
        second.crop(PAGE + 3)
        with pytest.raises(OutOfPages):
            decoder.forward_many([([7], second), ([9] * 6 * PAGE, third)])
        assert third.pages == []
        seen = decoder.forward([7], second)
        decoder.pool.most = 9
        expected = decoder.forward([*shared[: PAGE + 3], 7], decoder.new())
    assert torch.allclose(seen, expected, atol=1e-5)
    await drafter.aclose()


async def test_a_draft_that_can_never_fit_says_so_and_is_no_fault(folder, vocabulary):
    """The next request is drafted at once."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    await drafter.load()
    drafter._loaded.decoder.pool.most = 2
    long, short = (Prompt(None, None, tuple(range(5, 5 + n))) for n in (3 * PAGE, 9))
    session = await drafter.open(long, vocabulary)
    with pytest.raises(DraftError, match="cache is full"):
        await session.propose(Committed("", ()), 2)
    assert len(await (await drafter.open(short, vocabulary)).propose(Committed("", ()), 2)) == 2
    await drafter.aclose()


async def test_cancelled_requests_leave_no_page_behind(folder, vocabulary):
    """Half of the callers go away in the middle of their drafts."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    sessions = [await drafter.open(prompt, vocabulary) for prompt in prompts(16)]
    tasks = [asyncio.create_task(s.propose(Committed("", ()), 60)) for s in sessions]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in done[::2])
    assert all(len(proposal) for proposal in done[1::2])
    for session in sessions:
        await session.aclose()
    await asyncio.wrap_future(drafter._stepper._executor.submit(int))  # behind the last step
    assert drafter._loaded.decoder.pool.used == 0
    await drafter.aclose()


async def test_what_is_drafted_aside_stays_for_nobody(folder, vocabulary):
    """The same drafts as a request's; its pages serve the next one, and a request's stay kept."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    asked = prompts(12)
    expected = await drafts(drafter, vocabulary, asked, [(4, 4)], together=False)
    await drafter.aclose()
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    await drafter.load()
    pool = drafter._loaded.decoder.pool

    async def draft(opened, prompt):
        session = await opened(prompt, vocabulary)
        found = (await session.propose(Committed("", ()), 4)).ids
        await session.aclose()
        return found

    assert await draft(drafter.open, asked[0]) == expected[0][0]
    kept, made = len(pool._kept), []
    for prompt, seen in zip(asked[1:], expected[1:], strict=True):
        assert await draft(drafter.open_aside, prompt) == seen[0]
        made.append(pool.made)
    assert len(pool._kept) == kept > 0
    assert made[-1] == max(made[:2])
    assert pool.used == 0
    before = drafter.forwarded
    assert await draft(drafter.open, asked[0]) == expected[0][0]
    assert drafter.forwarded - before < len(asked[0].ids)
    await drafter.aclose()

"""Two hundred drafting sessions at once with room for a few: nobody starves, nothing is left."""

from __future__ import annotations

import asyncio

from specroute.context import Committed
from specroute.draft.local import LocalDrafter
from specroute.vocabulary import load_vocabulary
from tests.draft.test_batching import prompts

CROWD, ROUNDS, PAGES = 200, 4, 60


async def test_a_crowd_of_sessions_takes_turns_in_bounded_memory(folder):
    """Whoever asks again stands behind those who wait: when the first is through with its rounds,
    nobody has more than one of them before it. Far more is drafted than the pages can hold."""
    vocabulary = load_vocabulary(folder)
    drafter = LocalDrafter("crowd", str(folder), device="cpu")
    await drafter.load()
    pool = drafter._loaded.decoder.pool
    pool.most = PAGES
    done = [0] * CROWD
    behind, used = [], []

    async def one(number, prompt):
        session = await drafter.open(prompt, vocabulary)
        committed = ()
        for _ in range(ROUNDS):
            proposal = await session.propose(Committed("", committed), 3)
            committed += (*proposal.ids[:2], 17)
            done[number] += 1
            used.append(pool.used)
            if done[number] == ROUNDS and not behind:
                behind.append(min(done))
        await session.aclose()

    await asyncio.gather(*(one(n, p) for n, p in enumerate(prompts(CROWD))))
    assert done == [ROUNDS] * CROWD
    assert behind[0] >= ROUNDS - 2
    assert max(used) <= PAGES
    assert pool.made <= PAGES
    assert (pool.used, drafter.cached_tokens) == (0, 0)
    await drafter.aclose()

"""Prompts of one model posted together: who shares a request, and what each gets of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specroute.config import ProviderConfig, Timeouts
from specroute.errors import StatusError
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.limits.purse import Purse, held
from specroute.target.shared_post import SharedPost
from tests.support.loopback import Exchange, Loopback

LIMITS = Timeouts(connect=20, first_token=20, stall=20, total=20, idle=0)


class Fleet:
    """A server whose model counts up from a prompt's last id."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refuses: Callable[[Any], int | None] = lambda prompt: None
        self.leaves_out: int | None = None
        self.arrived, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.hung_up = asyncio.Event()

    async def __call__(self, call: Exchange) -> None:
        prompt, k = call.json["prompt"], call.json["max_tokens"]
        self.asked.append(prompt)
        status = self.refuses(prompt)
        if status is not None:
            await call.json_answer({"error": {"message": "no"}}, status=status)
            return
        if not self.go.is_set():
            self.arrived.set()
            for done in asyncio.as_completed([self.go.wait(), call.gone.wait()]):
                await done
                break
            if call.gone.is_set():
                self.hung_up.set()
                return
        listed = isinstance(prompt[0], list)
        prompts = prompt if listed else [prompt]
        choices = [
            {"index": i, "text": "", "token_ids": [p[-1] + 1 + n for n in range(k)]}
            for i, p in enumerate(prompts)
            if not listed or i != self.leaves_out
        ]
        usage = {
            "prompt_tokens": sum(map(len, prompts)),
            "completion_tokens": k * len(choices),
        }
        await call.json_answer({"choices": choices[::-1], "usage": usage})


@asynccontextmanager
async def posting(fleet: Fleet) -> AsyncIterator[Callable[..., Any]]:
    """What asks for ``k`` ids after some: (ids, prompt tokens, completion tokens)."""
    async with Loopback(fleet) as server:
        http = HttpClient(ProviderConfig("fleet", "vllm", server.url))
        post = SharedPost(http, "small", lambda: Deadline(LIMITS))

        async def ask(*ids: int, k: int = 1) -> tuple[list[int], int, int]:
            body = {"model": "small", "prompt": list(ids), "max_tokens": k}
            answer = await post("/completions", body)
            usage = answer["usage"]
            (choice,) = answer["choices"]
            return choice["token_ids"], usage["prompt_tokens"], usage["completion_tokens"]

        try:
            yield ask
        finally:
            await http.aclose()


async def test_prompts_of_one_turn_leave_together() -> None:
    """Each gets its own part and its share of the bill; one with another K leaves by itself."""
    fleet = Fleet()
    async with posting(fleet) as ask:
        found = await asyncio.gather(ask(1, 2, k=2), ask(1, 2, 3, 4, k=2), ask(5))
    assert found == [([3, 4], 2, 2), ([5, 6], 4, 2), ([6], 1, 1)]
    assert sorted(fleet.asked, key=str) == [[5], [[1, 2], [1, 2, 3, 4]]]


async def test_a_crowd_is_cut_into_lists() -> None:
    """64 prompts at most are in one request."""
    fleet = Fleet()
    async with posting(fleet) as ask:
        found = await asyncio.gather(*(ask(n) for n in range(130)))
    assert [ids for ids, _, _ in found] == [[n + 1] for n in range(130)]
    assert sorted(len(prompt) for prompt in fleet.asked) == [2, 64, 64]


async def test_a_refused_list_is_asked_one_by_one() -> None:
    """A server may take ids and no lists: it is asked for no list that long again."""
    fleet = Fleet()
    fleet.refuses = lambda prompt: 400 if isinstance(prompt[0], list) else None
    async with posting(fleet) as ask:
        for _ in range(3):
            found = await asyncio.gather(ask(1), ask(2))
            assert [ids for ids, _, _ in found] == [[2], [3]]
    assert [isinstance(prompt[0], list) for prompt in fleet.asked] == [True, *[False] * 6]


async def test_what_a_provider_says_of_itself_is_everybodys_answer() -> None:
    """Busy: nobody asks again by itself."""
    fleet = Fleet()
    fleet.refuses = lambda prompt: 429
    async with posting(fleet) as ask:
        found = await asyncio.gather(ask(1), ask(2), return_exceptions=True)
    assert [type(error) for error in found] == [StatusError, StatusError]
    assert len(fleet.asked) == 1


async def test_one_that_was_left_out_asks_again_and_pays_its_part_of_both() -> None:
    """And nothing is sent jointly to such a server any more."""
    fleet = Fleet()
    fleet.leaves_out = 1
    async with posting(fleet) as ask:
        first, second = await asyncio.gather(ask(1), ask(2))
        assert (first[0], second[0]) == ([2], [3])
        assert first[1] + second[1] == 3  # as the server counted: two in the list, one alone
        await asyncio.gather(ask(1), ask(2))
    assert fleet.asked[1:] == [[2], [1], [2]]


async def test_a_caller_who_leaves_is_not_noticed_by_the_others() -> None:
    """The request ends when the last of them has gone."""
    fleet = Fleet()
    fleet.go.clear()
    async with posting(fleet) as ask:
        tasks = [asyncio.ensure_future(ask(n)) for n in range(3)]
        await fleet.arrived.wait()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        fleet.go.set()
        assert [(await task)[0] for task in tasks[1:]] == [[2], [3]]
        fleet.go.clear()
        fleet.arrived.clear()
        tasks = [asyncio.ensure_future(ask(n)) for n in range(2)]
        await fleet.arrived.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await fleet.hung_up.wait()


@pytest.mark.parametrize("budget", [True, False])
async def test_a_request_with_a_budget_of_its_own_asks_alone(budget: bool) -> None:
    """What is held back for a call is held in one purse."""
    fleet = Fleet()
    async with posting(fleet) as ask:
        if budget:
            with held(Purse(1.0, 0.1)):
                await asyncio.gather(ask(1), ask(2))
        else:
            await asyncio.gather(ask(1), ask(2))
    assert len(fleet.asked) == (2 if budget else 1)

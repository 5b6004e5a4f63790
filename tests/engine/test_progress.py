"""What one request meets is not made another's: forms, refusals, late drafts, ends, labels, costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from specroute.measure import Acceptance, Pace, Snapshot
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import RoundView
from specroute.policy.objective import Objective
from specroute.profiles import load_profile
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy

pytestmark = pytest.mark.alone

CHAT: Mapping[str, Any] = {
    "capabilities": {
        "score": ["prompt_logprobs"],
        "id_prompts": False,
        "template": "apply-template",
    }
}


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(script()) as running:
        yield running


def untemplated(score: str, **more: Any) -> dict[str, Any]:
    """The reference server as a profile that doesn't know how it renders chats."""
    caps = {
        name: value
        for name, value in vars_of(load_profile("reference").capabilities).items()
        if name != "template" and value is not None
    }
    return {"profile": "generic", "capabilities": {**caps, "score": [score], **more}}


def vars_of(frozen: Any) -> dict[str, Any]:
    return {name: getattr(frozen, name) for name in frozen.__dataclass_fields__}


def known(
    server: ReferenceServer, drafter: EchoDrafter, **options: Any
) -> AbstractAsyncContextManager[Any]:
    """A client whose target's tokenizer is configured: no server renders for it."""
    return speculating(
        World(script()), server, drafter=drafter, provider=untemplated("echo"), **options
    )


def configure(client: Any, drafter: EchoDrafter) -> None:
    pool = client.router.speculation.pool
    made = pool.target

    def target(*args: Any) -> Any:
        found = made(*args)
        found.tokenizer = drafter.vocabulary
        return found

    pool.target = target


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.6])
async def test_a_draft_of_nothing_but_space_ends_as_any_other(k: int, wrong: float) -> None:
    """Space at the end is held back from templates, so such a draft can't be judged."""
    spec = script()
    spec["vocabulary"] = [*spec["vocabulary"], " ", ","]
    with ReferenceServer(spec) as running:
        for seed in range(6):
            drafter = EchoDrafter(spec, wrong=wrong, seed=seed, text_only=True)
            vocabulary = drafter.vocabulary
            assert vocabulary is not None
            drafter.answer = list(vocabulary.encode(TEXT.replace(", ", ",")))
            async with speculating(
                World(spec), running, drafter=drafter, k=k, provider=CHAT
            ) as client:
                got = await asyncio.wait_for(ask(client, max_tokens=40), 10)
                assert (got.text, got.finish) == (TEXT, "stop")
                assert drafter.proposals < 60


async def test_chats_are_scored_as_chats_without_a_template(server: ReferenceServer) -> None:
    """And a prompt that is no chat leaves the dialect as trusted as it was."""
    drafter = EchoDrafter(script(), text_only=True)
    provider = untemplated("prompt_logprobs", id_prompts=False)
    async with speculating(World(script()), server, drafter=drafter, provider=provider) as client:
        for _ in range(2):
            got = await ask(client, max_tokens=40)
            assert got.text == TEXT
            assert got.report is not None
            assert (got.report.method, got.report.exactness) == ("score", "bounded")
            assert got.report.accepted > 0
            for prompt in ("go", [0, 1]):
                other = await ask(client, chat=False, prompt=prompt, max_tokens=5)
                assert other.report is not None
                assert other.report.method == "plain"
                assert "messages" in other.report.plan_reason


async def test_a_text_prompt_leaves_scoring_by_ids_trusted(server: ReferenceServer) -> None:
    """Where only the client knows the tokenizer, a text prompt has no ids that are sure."""
    drafter = EchoDrafter(script())
    async with known(server, drafter) as client:
        configure(client, drafter)
        for _ in range(2):
            got = await ask(client, max_tokens=40)
            assert got.report is not None
            assert (got.report.method, got.report.exactness) == ("score", "exact-greedy")
            other = await ask(client, chat=False, prompt="go", max_tokens=5)
            assert other.report is not None
            assert "token ids" in other.report.plan_reason


async def test_an_answer_taken_up_by_its_text_is_not_called_exact(
    server: ReferenceServer,
) -> None:
    """Without a token limit only prefill can go on, and its server cuts the text anew."""
    drafter = EchoDrafter(script(), mode="raise", after=2)
    async with known(server, drafter) as client:
        configure(client, drafter)
        got = await ask(client)
        assert got.text == TEXT
        assert got.report is not None
        assert got.report.method == "score"
        assert got.report.exactness == "bounded"
        assert "retokenised" in (got.report.exactness_reason or "")


async def test_what_takes_a_refused_dialects_place_is_not_refused_with_it(
    server: ReferenceServer,
) -> None:
    """Requests in flight find the same lie; the next dialect is tried, once, and stays."""
    lying = False

    def positive(data: Any) -> None:
        shown = data["choices"][0]["logprobs"]
        shown["token_logprobs"] = [0.7] * len(shown["tokens"])

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return Fault("edit", value=positive) if lying and body.get("echo") else None

    async with Proxy(server.base_url, judge) as proxy:
        provider = {
            "base_url": proxy.base_url,
            "capabilities": {"score": ["echo", "prompt_logprobs"]},
        }
        async with speculating(
            World(script()), server, drafter=EchoDrafter(script()), k=2, provider=provider
        ) as client:
            await ask(client)
            lying = True
            for got in await asyncio.gather(*(ask(client) for _ in range(8))):
                assert got.text == TEXT
            again = await ask(client)
            assert again.text == TEXT
            assert again.report is not None
            assert again.report.method == "score"
            (target,) = client.router.speculation.pool.targets.values()
            assert set(target.learned.refused) == {"echo"}


async def test_a_draft_that_hangs_is_waited_for_once(server: ReferenceServer) -> None:
    """Then it is left alone for a while, and the report says so."""
    drafter = EchoDrafter(script(), mode="hang")
    timeouts = {"connect": 2, "first_token": 1.2, "stall": 1.2, "total": 10}
    async with speculating(
        World(script()), server, drafter=drafter, provider={"timeouts": timeouts}
    ) as client:
        await ask(client)
        started = time.monotonic()
        for _ in range(3):
            got = await ask(client)
            assert got.text == TEXT
            assert got.report is not None
            assert any("not tried again" in note for note in got.report.notes)
        assert time.monotonic() - started < 0.5
        assert drafter.proposals == 1


async def test_a_stream_that_breaks_behind_the_answers_end_spoils_nothing(
    server: ReferenceServer,
) -> None:
    """The stop string began in what was committed, so the server doesn't know of it."""

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return Fault("cut", after=3) if body.get("stream") else None

    drafter = EchoDrafter(script(), mode="raise", after=1)
    async with (
        Proxy(server.base_url, judge) as proxy,
        speculating(
            World(script()),
            server,
            drafter=drafter,
            k=2,
            provider={"base_url": proxy.base_url},
            max_retries=0,
        ) as client,
    ):
        got = await ask(client, stop=["two, three"])
        assert (got.text, got.finish) == ("one, ", "stop")
        assert got.report is not None
        assert got.report.complete


def test_a_server_asked_once_per_token_is_priced_so() -> None:
    """Each drafted token is a whole further prompt and an output token."""
    policy = Adaptive(Objective(usd_per_second=0.001))
    figures = Snapshot(
        Pace(0.3, 0.04, 200.0),
        Acceptance((90.0,) * 16, (100.0,) * 16),
        verify_s=0.03,
        draft_s=0.004,
        rounds=10,
        context=30,
        usd_in=1e-6,
        usd_out=4e-6,
    )
    view = RoundView(3, 10, 100, Acceptance(), 0.03, 0.004)
    once = policy.next_k(view, figures)
    each = policy.next_k(view, replace(figures, prompt_per_token=True))
    assert 0 <= each < once

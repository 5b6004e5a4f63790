"""What can't be speculated on goes plain and says why; what can't be seen is the target's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from specroute.request import CHAT, COMPLETIONS, Options, TextRequest
from tests.engine.answers import EchoDrafter, ask, script
from tests.engine.world import World, chain, speculating
from tests.support.distribution import total_variation, tv_quantile

USER = [{"role": "user", "content": "go"}]
PART = {"type": "image_url", "image_url": {"url": "data:,"}}
OBSTACLES: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "'tools'"),
    ({"tool_choice": "auto"}, "'tool_choice'"),
    ({"logit_bias": {"3": 1}}, "'logit_bias'"),
    ({"presence_penalty": 0.1}, "'presence_penalty'"),
    ({"frequency_penalty": -0.1}, "'frequency_penalty'"),
    ({"n": 2}, "n > 1"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 0}, "logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "logprobs"),
    ({"response_format": {"type": "json_object"}}, "'response_format'"),
    ({"seed": 3, "temperature": 0.5}, "'seed'"),
    ({"seed": 3}, "'seed'"),
    ({"temperature": "warm"}, "not a number"),
    ({"temperature": 2.5}, "outside"),
    ({"top_p": 0}, "'top_p' is outside"),
    ({"top_p": 1.5}, "'top_p' is outside"),
    ({"min_p": -1}, "'min_p' is outside"),
    ({"max_tokens": 0}, "'max_tokens'"),
    ({"max_completion_tokens": True}, "'max_completion_tokens'"),
    ({"top_k": 2.5}, "'top_k'"),
    ({"stop": ["a", ""]}, "'stop'"),
    ({"repetition_penalty": 1.1}, "'repetition_penalty'"),
    ({"messages": []}, "'messages'"),
    ({"messages": [3]}, "not an object"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "the role 'tool'"),
    ({"messages": [{"role": "user", "content": [PART]}]}, "image_url"),
    ({"messages": [{"role": "user", "content": []}]}, "empty content"),
    ({"messages": [{"role": "user", "content": None}]}, "no text content"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "'tool_calls'"),
    ({"messages": [*USER, {"role": "assistant", "content": "x"}]}, "assistant"),
]


@pytest.mark.parametrize(("change", "said"), OBSTACLES, ids=str)
def test_obstacles_are_named(change: dict[str, Any], said: str) -> None:
    """Each kind of body that only a plain call answers."""
    request = TextRequest.read(CHAT, {"model": "m", "messages": USER, **change})
    assert request.obstacle is not None
    assert said in request.obstacle


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"temperature": 0, "seed": 3},
        {"stop": "x", "max_tokens": 3},
        {"stop": None, "tools": [], "n": 1, "logprobs": False, "top_logprobs": 0},
        {"presence_penalty": 0, "response_format": {"type": "text"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"user": "me", "metadata": {}, "stream": True, "stream_options": {"include_usage": True}},
        {"unknown": None, "top_p": 1, "top_k": -1, "min_p": 0},
    ],
    ids=str,
)
def test_ordinary_chats_have_no_obstacle(change: dict[str, Any]) -> None:
    """Neutral values of any field included."""
    assert TextRequest.read(CHAT, {"model": "m", "messages": USER, **change}).obstacle is None


@pytest.mark.parametrize(
    ("prompt", "more", "said"),
    [
        ("", {"max_tokens": 3}, "'prompt'"),
        (["a", "b"], {"max_tokens": 3}, "'prompt'"),
        ([1, True], {"max_tokens": 3}, "'prompt'"),
        ("a", {}, "'max_tokens'"),
        ("a", {"max_tokens": 3, "echo": True}, "'echo'"),
        ("a", {"max_tokens": 3, "suffix": "x"}, "'suffix'"),
        ("a", {"max_tokens": 3}, None),
        ([1, 2], {"max_tokens": 3}, None),
    ],
    ids=str,
)
def test_completions_need_one_prompt_and_a_limit(
    prompt: Any, more: dict[str, Any], said: str | None
) -> None:
    """A server's own default of max_tokens is small, and not known."""
    found = TextRequest.read(COMPLETIONS, {"model": "m", "prompt": prompt, **more}).obstacle
    assert (found is None) if said is None else (found is not None and said in found)


def test_the_request_s_own_options_are_checked() -> None:
    """Unknown keys and wrong types are the caller's errors."""
    from specroute.errors import RequestError

    assert Options.read({"policy": "balanced", "seed": 3}) == Options("balanced", 3)
    for bad in (3, {"sed": 1}, {"seed": "x"}, {"policy": 3}):
        with pytest.raises(RequestError, match="specroute"):
            Options.read(bad)


@pytest.mark.parametrize(
    ("body", "capabilities", "said"),
    [
        ({"temperature": 1.0, "seed": 4}, {}, "'seed'"),
        ({"temperature": None}, {}, "left to the server"),
        ({"temperature": 0.7, "top_k": 30}, {}, "shows too little"),
        ({"temperature": 0.7, "top_p": 0.9}, {"sampling_defaults": "model"}, "defaults for top_p"),
        ({"temperature": 0.7, "presence_penalty": 1}, {}, "'presence_penalty'"),
        ({"temperature": 0, "n": 2}, {}, "n > 1"),
        ({"temperature": 0, "logprobs": True}, {}, "logprobs"),
        ({"temperature": 0}, {"score": []}, "not known to score"),
        ({"temperature": 0}, {"completions": False}, "not known to score"),
    ],
    ids=str,
)
async def test_what_is_not_scored_says_why(
    body: dict[str, Any], capabilities: dict[str, Any], said: str
) -> None:
    """In the report of a plain, exact answer."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with speculating(
            World(spec),
            server,
            drafter=EchoDrafter(spec),
            provider={"capabilities": {"score": ["echo"], **capabilities}},
        ) as client:
            messages: Any = USER
            sent = {k: v for k, v in body.items() if v is not None}
            extra = {"top_k": sent.pop("top_k")} if "top_k" in sent else {}
            from specroute import report

            answer = await client.chat.completions.create(
                model="m", messages=messages, extra_body=extra, **sent
            )
            shown = report(answer)
            assert (shown.method, shown.exactness) == ("plain", "exact")
            assert said in shown.plan_reason


async def test_where_a_nucleus_is_not_seen_the_target_draws_itself() -> None:
    """With five log-probabilities and a wide nucleus the answer is distributed as the target's."""
    world = World(chain())
    settings = {"temperature": 1.0, "top_p": 0.93}
    (start,) = world.vocabulary.encode("a")
    first: Counter[int] = Counter()
    unseen = 0
    with ReferenceServer(world.spec, seed=2, max_logprobs=5) as server:
        provider = {"capabilities": {"score": ["echo"], "echo_max_logprobs": 5}}
        async with speculating(world, server, k=2, provider=provider) as client:
            await client.warm_up()

            async def one(seed: int) -> None:
                nonlocal unseen
                got = await ask(
                    client,
                    chat=False,
                    stream=False,
                    prompt=[start],
                    max_tokens=2,
                    extra_body={"specroute": {"seed": seed}},
                    **settings,
                )
                assert got.report is not None
                assert (got.report.method, got.report.exactness) == ("score", "exact")
                unseen += any(a.purpose == "draw" for a in got.report.attempts)
                ids = world.vocabulary.encode(got.text)
                first[ids[0] if ids else world.eos] += 1

            for batch in range(0, 300, 30):
                await asyncio.gather(*map(one, range(batch, batch + 30)))
    p = world.shaped(start, **settings)
    assert unseen
    assert total_variation(first, p) < tv_quantile(p, 300)

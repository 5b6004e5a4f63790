"""A server that answers as SGLang 0.5.23's source says, behind the profile as it ships.

Its chat names no tokens by id; ``return_token_ids`` puts the ids beside the answer, and is refused
on a chat's stream. Its /tokenize renders messages, and states the tokenizer's own longest length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.world import World, chain, speculating
from tests.support.proxy import Fault, Proxy
from tests.support.tiny import save_model, save_tokenizer

SGLANG: dict[str, Any] = {
    "disable": ["token_id_names", "apply_template", "prompt_logprobs", "detokenize"],
    "quirks": ["scaled_logprobs"],
}
TOKENIZERS = 2**20
"""What its tokenizer says that it can take: more than the context that is served."""


def _as_sglang(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
    """What the reference server says otherwise than SGLang does."""
    assert "return_tokens_as_token_ids" not in body
    if path.endswith("/tokenize"):
        # "Supported only with a Jinja chat template": not to be relied on.
        assert "add_generation_prompt" not in body
        return Fault("edit", value=lambda data: data.update(max_model_len=TOKENIZERS))
    if path.endswith("/completions") and not body.get("stream"):
        return Fault("edit", value=_no_details)
    return None


def _no_details(data: dict[str, Any]) -> None:
    """Without --enable-cache-report; ``text_offset`` is not supported yet."""
    data["usage"]["prompt_tokens_details"] = None
    for choice in data["choices"]:
        shown = choice.get("logprobs") or {}
        if "text_offset" in shown:
            shown["text_offset"] = [-1] * len(shown["tokens"])


@asynccontextmanager
async def sglang(
    world: World, server: ReferenceServer, **options: Any
) -> AsyncIterator[tuple[AsyncSpecRoute, Proxy]]:
    judge = options.pop("judge", _as_sglang)
    async with Proxy(server.base_url, judge) as proxy:
        provider = {"profile": "sglang", "capabilities": {}, "base_url": proxy.base_url}
        async with speculating(world, server, provider=provider, **options) as client:
            yield client, proxy


@pytest.mark.parametrize("method", ["score", "cascade"])
@pytest.mark.parametrize("stream", [True, False])
async def test_it_is_scored_by_its_native_endpoint_without_a_tokenizer_in_the_config(
    method: str, stream: bool
) -> None:
    """The draft's vocabulary is seen to be the server's, and the server renders the chat."""
    world = World(script())
    with ReferenceServer(world.spec, **SGLANG) as server:
        drafter = EchoDrafter(world.spec, wrong=0.3)
        async with sglang(world, server, method=method, drafter=drafter) as (client, _):
            got = await ask(client, stream=stream, max_tokens=60)
        assert got.text == TEXT
        assert got.report is not None
        assert (got.report.method, got.report.exactness) == (method, "exact-greedy")
        assert got.report.accepted > 0
        assert sum(record.path == "/generate" for record in server.log) >= 2


async def test_lanes_begin_from_ids_and_their_streams_name_theirs() -> None:
    """So ``prefix`` is exact there, end token included."""
    world = World(script())
    with ReferenceServer(world.spec, pace="tpot=4ms", **SGLANG) as server:
        drafter = EchoDrafter(world.spec)
        async with sglang(world, server, method="prefix", drafter=drafter) as (client, proxy):
            await client.warm_up()
            got = await ask(client, max_tokens=60)
        assert got.text == TEXT
        assert got.finish == "stop"
        assert got.report is not None
        assert (got.report.method, got.report.exactness) == ("prefix", "exact-greedy")
        assert got.report.accepted > 0
        lanes = [body for path, body in proxy.asked if body.get("stream")]
        assert all(path.endswith("/v1/completions") for path, b in proxy.asked if b in lanes)
        assert all(body["return_token_ids"] for body in lanes)


async def test_drawn_answers_are_exact_where_all_settings_are_stated() -> None:
    """At a temperature above 0, with evidence from prompts and draws that name their tokens."""
    world = World(chain())
    sampling = {"temperature": 0.8, "top_p": 0.9}
    with ReferenceServer(world.spec, **SGLANG) as server:
        async with sglang(world, server) as (client, _):
            for stated, method in ((False, "plain"), (True, "score")):
                extra = {"top_k": 8, "min_p": 0} if stated else {}
                got = await ask(client, max_tokens=12, extra_body=extra, **sampling)
                assert got.report is not None
                assert (got.report.method, got.report.exactness) == (method, "exact")
                assert ("send all three" in got.report.plan_reason) is not stated


async def test_its_tokenizers_longest_length_is_not_taken_for_the_context() -> None:
    """A chat without max_tokens goes on by prefill, never with a max_tokens made of it."""
    world = World(script())
    with ReferenceServer(world.spec, **SGLANG) as server:
        drafter = EchoDrafter(world.spec, mode="raise", after=2)
        async with sglang(world, server, drafter=drafter) as (client, proxy):
            got = await ask(client)
        assert got.text == TEXT
        assert got.report is not None
        assert got.report.method == "score"
        (left,) = [body for _, body in proxy.asked if body.get("stream")]
        assert left["continue_final_message"] is True
        assert "max_tokens" not in left


async def test_a_version_that_shows_no_ids_goes_plain_and_says_why() -> None:
    """It ignores a field that it doesn't know."""
    world = World(script())
    with ReferenceServer(world.spec, **SGLANG, ignore=["token_ids"]) as server:
        async with sglang(world, server) as (client, _):
            got = await ask(client)
        assert got.text == TEXT
        assert got.report is not None
        assert got.report.method == "plain"
        assert "generated tokens came without ids" in got.report.plan_reason


def _cuts_texts_alone(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
    if path.endswith("/tokenize") and "messages" in body:
        return Fault("status", status=400)
    return None


@pytest.mark.parametrize("configured", [True, False])
async def test_where_the_server_renders_no_chat_the_configs_tokenizer_does(
    configured: bool, tmp_path: Path
) -> None:
    """Versions whose /tokenize takes texts alone; without a tokenizer the report says what to name."""
    torch.set_num_threads(1)
    save_tokenizer(tmp_path)
    save_model(tmp_path, eos=None)
    model: dict[str, Any] = {"targets": ["lab:tiny"], "drafts": ["draft"]}
    model["policy"] = {"preset": "fixed", "method": "score", "num_speculative_tokens": 4}
    if configured:
        model["tokenizer"] = str(tmp_path)
    draft = {"kind": "local", "model": str(tmp_path), "device": "cpu"}
    with ReferenceServer(tmp_path, names=["tiny"], **SGLANG) as server:
        async with Proxy(server.base_url, _cuts_texts_alone) as proxy:
            config = {
                "version": 1,
                "providers": {"lab": {"profile": "sglang", "base_url": proxy.base_url}},
                "drafts": {"draft": draft},
                "models": {"m": model},
            }
            async with AsyncSpecRoute(config=config) as client:
                got = await ask(client, max_tokens=12)
    assert got.report is not None
    assert got.report.method == ("score" if configured else "plain")
    assert configured or "name the model's 'tokenizer'" in got.report.plan_reason


async def test_a_default_penalty_of_its_chat_shows_in_its_log_probabilities() -> None:
    """They are taken after penalties, at temperature 0 as at 1: held against what is scored."""

    def penalised(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        def less(data: dict[str, Any]) -> None:
            for entry in data["choices"][0]["logprobs"]["content"][3:]:
                entry["logprob"] -= 1.0

        if path.endswith("/chat/completions") and body.get("logprobs"):
            return Fault("edit", value=less)
        return None

    world = World(script())
    with ReferenceServer(world.spec, **SGLANG) as server:
        async with sglang(world, server, judge=penalised) as (client, _):
            got = await ask(client)
        assert got.report is not None
        assert got.report.method == "plain"
        assert "was generated at log-probability" in got.report.plan_reason

"""vLLM's CPU build: its echo is right, it tokenizes, and it speculates by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest

from specroute import AsyncSpecRoute
from tests.live import agreement, checks, results, servers
from tests.live.agreement import Plain
from tests.live.prompts import MATCHING
from tests.live.servers import NAME, Server
from tests.live.setup import MODEL

LONG = 64
"""Tokens an answer needs to get from its beginning to what it repeats."""
PREFILL = "continue_final_message"
OWN_NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2}'


@pytest.fixture(scope="module")
def plain(vllm: Server, prompts: Sequence[str], tokens: int) -> list[Plain]:
    return asyncio.run(agreement.plain_answers(vllm, prompts, tokens, PREFILL))


async def test_the_client_passes_plain_answers_on(
    vllm: Server, plain: list[Plain], tokens: int
) -> None:
    """Without a draft the client's answers are the server's."""
    await checks.plain_client_agrees(vllm, plain[:4], tokens)


async def test_the_probe_sees_what_the_profile_says(vllm: Server, tmp_path: Path) -> None:
    """Prefill, template and scoring are found by behaviour."""
    seen = await checks.probed(vllm, tmp_path)
    said = ("prefill", "prefill_repeats", "template", "id_prompts", "list_prompts", "scores_by_ids")
    assert {name: seen[name] for name in said} == {
        "prefill": PREFILL,
        "prefill_repeats": False,
        "template": "tokenize",
        "id_prompts": True,
        "list_prompts": True,
        "scores_by_ids": True,
    }
    assert "echo" in seen["score"]
    assert seen["stream_usage"] is True


async def test_scoring_agrees(vllm: Server, plain: list[Plain], tokens: int) -> None:
    """Echo by ids, drafted by the same model here."""
    config = agreement.config_for(vllm, drafts=["same"])
    said = await checks.agrees_as_often(vllm, "score, local draft", config, plain, tokens)
    assert checks.count(said, "score") >= 0.9 * len(said)


async def test_prefix_agrees(vllm: Server, plain: list[Plain], tokens: int) -> None:
    """Lanes from the same model's beginnings."""
    config = agreement.config_for(vllm, drafts=["same"], method="prefix")
    some = plain[: max(4, len(plain) // 3)]
    said = await checks.agrees_as_often(vllm, "prefix, local draft", config, some, tokens)
    assert checks.count(said, "prefix") == len(said)


async def test_beside_its_own_ngram_speculation(
    vllm: Server, prompts: Sequence[str], tokens: int
) -> None:
    """The same edits, quotes and copies: vLLM plain, vLLM with its own n-gram speculation, and
    specroute with an n-gram draft at the plain one. Says who wins; the answers must agree where the
    plain server's own do."""
    asked, tokens = MATCHING[: max(2, min(len(prompts), len(MATCHING)))], max(tokens, LONG)
    plain = await agreement.plain_answers(vllm, asked, tokens, None)
    config = agreement.config_for(vllm, drafts=["ngram"], tokenizer=str(MODEL))
    ours = await checks.agrees_as_often(vllm, "score, n-gram draft", config, plain, tokens)
    assert sum(s.report.accepted for s in ours if s.report is not None) > 0
    config = agreement.config_for(vllm, drafts=["ngram"], policy="balanced", tokenizer=str(MODEL))
    await checks.agrees_as_often(vllm, "balanced, n-gram draft", config, plain, tokens)
    try:
        with servers.vllm("--speculative-config", OWN_NGRAM) as speculating:
            seconds, same = await _in_turn(vllm, speculating, plain, tokens)
    except servers.DidNotStart as error:
        results.keep("vLLM's own n-gram", {"verdict": f"vLLM's own n-gram did not start: {error}"})
        pytest.skip(f"vLLM with --speculative-config did not start: {error}")
    told = ", ".join(f"{name} {s:.1f} s" for name, s in seconds.items())
    winner = min(seconds, key=lambda name: seconds[name])
    verdict = (
        f"n-gram speculation on vLLM, {len(asked)} copying prompts of {tokens} tokens, in turn: "
        f"{told}; quickest: {winner}; vLLM's own speculation gave the plain answer on "
        f"{same}/{len(asked)}"
    )
    results.keep("vLLM's own n-gram", {"verdict": verdict, "seconds": seconds, "at": time.time()})
    print(verdict)


async def _in_turn(
    server: Server, speculating: Server, plain: Sequence[Plain], tokens: int
) -> tuple[dict[str, float], int]:
    """(seconds of all prompts, by who answered; how often vLLM's own speculation gave the plain
    answer). Each prompt is put to all of them before the next, each time in another order, so that
    whatever else the machine does falls on all alike."""
    fixed = agreement.config_for(server, drafts=["ngram"], tokenizer=str(MODEL))
    balanced = agreement.config_for(
        server, drafts=["ngram"], policy="balanced", tokenizer=str(MODEL)
    )
    seconds: Counter[str] = Counter()
    same = 0
    async with (
        openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as alone,
        openai.AsyncOpenAI(base_url=speculating.base_url, api_key="none") as own,
        AsyncSpecRoute(config=fixed) as ours,
        AsyncSpecRoute(config=balanced) as chosen,
    ):
        who: list[tuple[str, openai.AsyncOpenAI, str]] = [
            ("plain", alone, NAME),
            ("vLLM's own n-gram", own, NAME),
            ("specroute, n-gram, K = 4", ours, "m"),
            ("specroute, balanced", chosen, "m"),
        ]
        for client in (ours, chosen):
            await client.warm_up()
        await agreement.ask(own, NAME, server, plain[0].prompt, 8)
        for i, each in enumerate(plain):
            for name, client, model in [*who[i % 4 :], *who[: i % 4]]:
                said = await agreement.ask(client, model, server, each.prompt, tokens)
                seconds[name] += said.seconds
                same += name == who[1][0] and each.said.agrees(said)
    return {name: seconds[name] for name, _, _ in who}, same

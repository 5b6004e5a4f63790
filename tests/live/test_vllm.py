"""vLLM's CPU build: its echo is right, it tokenizes, and it speculates by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live import agreement, checks, results, servers
from tests.live.agreement import Plain
from tests.live.prompts import MATCHING
from tests.live.servers import Server
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
    chosen = await checks.agrees_as_often(vllm, "balanced, n-gram draft", config, plain, tokens)
    try:
        with servers.vllm("--speculative-config", OWN_NGRAM) as speculating:
            theirs = await agreement.plain_answers(speculating, asked, tokens, None)
    except servers.DidNotStart as error:
        results.keep("vLLM's own n-gram", {"verdict": f"vLLM's own n-gram did not start: {error}"})
        pytest.skip(f"vLLM with --speculative-config did not start: {error}")
    seconds = {
        "plain": min(sum(p.said.seconds for p in plain), _again(plain)),
        "vLLM's own n-gram": min(sum(p.said.seconds for p in theirs), _again(theirs)),
        "specroute, n-gram, K = 4": sum(s.seconds for s in ours),
        "specroute, balanced": sum(s.seconds for s in chosen),
    }
    same = sum(p.said.agrees(t.said) for p, t in zip(plain, theirs, strict=True))
    told = ", ".join(f"{name} {s:.1f} s" for name, s in seconds.items())
    winner = min(seconds, key=lambda name: seconds[name])
    verdict = (
        f"n-gram speculation on vLLM, {len(asked)} copying prompts of {tokens} tokens: {told}; "
        f"quickest: {winner}; vLLM's own speculation gave its plain answer on {same}/{len(asked)}"
    )
    results.keep("vLLM's own n-gram", {"verdict": verdict, "seconds": seconds, "at": time.time()})
    print(verdict)


def _again(plain: Sequence[Plain]) -> float:
    return sum(s.seconds for p in plain for s in p.others["again"])

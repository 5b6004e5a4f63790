"""llama.cpp's own server: ignores echo, scores by lists of prompts, continues a prefill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from specroute import AsyncSpecRoute, report
from tests.live import agreement, checks
from tests.live.agreement import Plain
from tests.live.prompts import COPYING
from tests.live.servers import Server

PREFILL = "trailing_assistant"
DRAFTS = {"ngram": "n-gram draft", "same": "local draft"}


@pytest.fixture(scope="module")
def plain(llama: Server, prompts: Sequence[str], tokens: int) -> list[Plain]:
    return asyncio.run(agreement.plain_answers(llama, prompts, tokens, PREFILL))


@pytest.fixture(scope="module")
def copying(llama: Server, prompts: Sequence[str], tokens: int) -> list[Plain]:
    asked = COPYING[: max(2, len(prompts) // 4)]
    return asyncio.run(agreement.plain_answers(llama, asked, tokens, PREFILL))


async def test_the_client_passes_plain_answers_on(
    llama: Server, plain: list[Plain], tokens: int
) -> None:
    """Without a draft the client's answers are the server's."""
    await checks.plain_client_agrees(llama, plain[:4], tokens)


async def test_the_probe_sees_what_the_profile_says(llama: Server, tmp_path: Path) -> None:
    """Prefill, template and lists of prompts are found by behaviour."""
    seen = await checks.probed(llama, tmp_path)
    said = ("prefill", "prefill_repeats", "template", "tokenize", "id_prompts", "list_prompts")
    assert {name: seen[name] for name in said} == {
        "prefill": PREFILL,
        "prefill_repeats": True,
        "template": "apply-template",
        "tokenize": "content",
        "id_prompts": True,
        "list_prompts": True,
    }
    assert seen["stream_usage"] is True
    assert seen["score"] == ["native_fanout"]
    assert "does not begin with the prompt" in seen["not scored by echo"]


async def test_echo_is_refused(llama: Server, plain: list[Plain], tokens: int) -> None:
    """It answers 200 with the generated tokens' logprobs only: found out, and answered plainly."""
    problem, _ = await checks.refused(llama, plain[0], tokens, "echo")
    assert "does not begin with the prompt that was sent" in problem


async def test_scoring_by_fanout_agrees(llama: Server, plain: list[Plain], tokens: int) -> None:
    """K + 1 prompts of one token each, under the server's own profile: the ids are its own, their
    vocabulary the draft's. Drafted by the same model here."""
    config = agreement.config_for(llama, drafts=["same"])
    said = await checks.agrees_as_often(llama, "fanout, local draft", config, plain, tokens)
    # A draft that comes too late on a busy machine leaves its answer plain.
    assert checks.count(said, "score") >= 0.9 * len(said)
    assert {s.report.exactness for s in said if s.report} <= {"exact-greedy", "exact"}


async def test_sampled_answers_stay_exact_by_its_own_draws(llama: Server) -> None:
    """Above T = 0 the server draws at every place, also tokens inside a character: no answer loses
    its label for one that isn't shown."""
    config = agreement.config_for(llama, drafts=["same"])
    asked = ("Write five emoji of animals: 🐱", "请用中文写一句话。")
    async with AsyncSpecRoute(config=config) as client:
        await client.warm_up()
        for prompt in asked:
            answer = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": prompt}],
                max_tokens=12,
                temperature=0.8,
            )
            shown = report(answer)
            assert shown is not None
            assert (shown.method, shown.exactness) == ("score", "exact"), shown.notes
            assert shown.rounds


async def test_prefix_agrees(llama: Server, copying: list[Plain], tokens: int) -> None:
    """Lanes by prefill, on prompts that ask for repetition."""
    for draft in ("ngram", "same"):
        config = agreement.config_for(llama, drafts=[draft], method="prefix")
        said = await checks.agrees_as_often(
            llama, f"prefix, {DRAFTS[draft]}", config, copying, tokens, scored=False
        )
        assert checks.count(said, "prefix") == len(said)

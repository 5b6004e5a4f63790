"""llama-cpp-python's server: its echo is shifted by one, so its answers are plain ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live import agreement, checks
from tests.live.agreement import Plain
from tests.live.servers import Server


@pytest.fixture(scope="module")
def plain(llama_cpp_python: Server, prompts: Sequence[str], tokens: int) -> list[Plain]:
    return asyncio.run(agreement.plain_answers(llama_cpp_python, prompts, tokens, None))


async def test_the_client_passes_plain_answers_on(
    llama_cpp_python: Server, plain: list[Plain], tokens: int
) -> None:
    """Without a draft the client's answers are the server's."""
    await checks.plain_client_agrees(llama_cpp_python, plain[:4], tokens)


async def test_the_probe_sees_what_the_profile_says(
    llama_cpp_python: Server, tmp_path: Path
) -> None:
    """No prefill, no ids, no lists of prompts, no dialect that can be trusted."""
    seen = await checks.probed(llama_cpp_python, tmp_path)
    said = ("prefill", "id_prompts", "list_prompts", "score", "stream_usage")
    assert {name: seen[name] for name in said} == {
        "prefill": "none",
        "id_prompts": False,
        "list_prompts": False,
        "score": [],
        "stream_usage": False,
    }


async def test_shifted_echo_is_refused(
    llama_cpp_python: Server, plain: list[Plain], tokens: int
) -> None:
    """Entry i is scored with the logits after token i: found out, and answered plainly."""
    problem, _ = await checks.refused(llama_cpp_python, plain[0], tokens, "echo")
    assert "is scored" in problem or "scored as" in problem


async def test_its_answers_agree(llama_cpp_python: Server, plain: list[Plain], tokens: int) -> None:
    """With a draft that can't be verified here, every answer is the plain one."""
    config = agreement.config_for(llama_cpp_python, drafts=["ngram"])
    said = await checks.agrees_as_often(
        llama_cpp_python, "score asked for, none to be had", config, plain, tokens, scored=False
    )
    assert checks.count(said, "plain") == len(said)

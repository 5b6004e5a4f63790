"""llama-cpp-python's server: its echo is shifted by one, so its answers are plain ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from specroute.profiles import load_profile
from specroute.target.dialects import DIALECTS, Ask
from specroute.target.dialects import agreement as agreement_of
from specroute.target.view import BadEvidence
from tests.live import agreement, checks
from tests.live.agreement import Plain
from tests.live.servers import NAME, Server


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


async def test_echo_is_refused(llama_cpp_python: Server, plain: list[Plain], tokens: int) -> None:
    """A chat's special tokens come back without their names, so it doesn't get as far as the shift:
    refused, and answered plainly."""
    problem, _ = await checks.refused(llama_cpp_python, plain[0], tokens, "echo")
    assert "do not join" in problem or "end before" in problem


async def test_echo_is_shifted_and_that_is_found_out(llama_cpp_python: Server) -> None:
    """On a text without special tokens its echo looks right in every count, but entry i is scored
    with the logits after token i: the target's own greedy tokens are not its own best there."""
    sampling = {"temperature": 0, **llama_cpp_python.extra}
    asked = {"prompt": "The capital of France is", "max_tokens": 8, "logprobs": 1, **sampling}
    async with httpx2.AsyncClient(base_url=llama_cpp_python.base_url, timeout=60) as client:
        said = (await client.post("/completions", json=asked)).json()["choices"][0]["logprobs"]
        own = said["tokens"]
        caps = load_profile("llama-cpp-python").capabilities
        ask = Ask(
            NAME, "".join(own[:-1]), text=asked["prompt"], sampling=sampling, capabilities=caps
        )
        request = DIALECTS["echo"].request(ask)
        answer = (await client.post(request.path, json=request.payload)).json()
    view = DIALECTS["echo"].view(answer, ask, 0.0)
    assert len(view.positions) == len(own) - 1
    with pytest.raises(BadEvidence, match="is scored"):
        agreement_of.check(view, own, said["token_logprobs"], processed=False)


async def test_its_answers_agree(llama_cpp_python: Server, plain: list[Plain], tokens: int) -> None:
    """With a draft that can't be verified here, every answer is the plain one."""
    config = agreement.config_for(llama_cpp_python, drafts=["ngram"])
    said = await checks.agrees_as_often(
        llama_cpp_python, "score asked for, none to be had", config, plain, tokens, scored=False
    )
    assert checks.count(said, "plain") == len(said)

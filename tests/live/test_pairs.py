"""Two real models on two servers: one drafts for the other."""

from __future__ import annotations

from collections.abc import Sequence

from tests.live import agreement, checks
from tests.live.servers import Server
from tests.live.setup import MODEL

PREFILL = "continue_final_message"


async def test_llama_cpp_drafts_for_vllm(
    llama: Server, vllm: Server, prompts: Sequence[str], tokens: int
) -> None:
    """SmolLM2 in 4 bits at llama.cpp's server proposes, the same model in float32 at vLLM decides."""
    some = prompts[: max(4, len(prompts) // 2)]
    plain = await agreement.plain_answers(vllm, some, tokens, PREFILL)
    config = agreement.config_for(vllm, drafts=["far"], remote=llama, tokenizer=str(MODEL))
    said = await checks.agrees_as_often(
        vllm, "score, remote draft at llama.cpp", config, plain, tokens
    )
    reports = [s.report for s in said if s.report is not None]
    assert sum(r.drafted for r in reports) > 0
    assert any(
        a.target.startswith("beside") or a.purpose == "draft" for r in reports for a in r.attempts
    )

"""The bundled models, for real: greedy answers are the plain ones, token for token."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from specroute import AsyncSpecRoute
from specroute.comparison import compare
from specroute.reference import corpus
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.running import ReferenceServer

PROMPTS = 3


@pytest.mark.parametrize("method", ["score", "prefix"])
async def test_greedy_answers_are_identical(method: str) -> None:
    """Held-out prompts of both classes, local draft, one server: same text, same finish."""
    with ReferenceServer(target_dir(), names=["target"], process=True, threads=1) as server:
        config: dict[str, Any] = {
            "version": 1,
            "providers": {"lab": {"profile": "reference", "base_url": server.base_url}},
            "drafts": {"tiny": {"kind": "local", "model": str(draft_dir()), "device": "cpu"}},
            "models": {
                "m": {
                    "targets": ["lab:target"],
                    "drafts": ["tiny"],
                    "policy": {
                        "preset": "fixed", "method": method, "num_speculative_tokens": 6
                    },
                }
            },
        }  # fmt: skip
        async with (
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as plain,
            AsyncSpecRoute(config=config) as client,
        ):
            accepted = 0
            for traffic in corpus.TRAFFIC:
                prompts = corpus.held_out(traffic, PROMPTS, seed=3)
                async for pair in compare(plain, client, ("target", "m"), prompts, 60):
                    report = pair.speculative.report
                    assert pair.agrees
                    assert report is not None
                    assert report.method == method
                    assert report.exactness == "exact-greedy"
                    accepted += report.accepted
                    assert pair.plain.tokens == pair.speculative.tokens
            assert accepted > 0

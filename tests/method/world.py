"""A slow target and a quick remote draft, both scripted, and how both are billed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from specroute import AsyncSpecRoute, Report
from specroute.reference.running import ReferenceServer

PRICE = {"input": 1.0, "output": 2.0}


@dataclass
class Two:
    target: ReferenceServer
    draft: ReferenceServer
    client: AsyncSpecRoute

    def billed(self, report: Report) -> bool:
        """Every call is in the report, with the servers' own counts where they ended in full."""
        records = {r.id: r for r in (*self.target.log, *self.draft.log)}
        for attempt in report.attempts:
            if attempt.purpose == "draft" or attempt.outcome != "ok":
                continue
            record = records[attempt.request_id or ""]
            assert attempt.usage.prompt_tokens == record.prompt_tokens
            assert attempt.usage.completion_tokens == record.completion_tokens
        drafted = [a for a in report.attempts if a.purpose == "draft" and not a.estimated]
        assert len(drafted) <= len(self.draft.log)
        return report.cost_usd is not None


@asynccontextmanager
async def two(
    method: str,
    answers: list[dict[str, Any]],
    draft: str,
    *,
    pace: str = "",
    draft_pace: str = "",
    vocabulary: list[str] | None = None,
    policy: Mapping[str, Any] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Two]:
    """``answers``: the target's; ``draft``: what the draft says to anything."""
    spec: dict[str, Any] = {"name": "big", "answers": answers}
    small: dict[str, Any] = {"name": "small", "answers": [{"when": "", "text": draft}]}
    with (
        ReferenceServer(spec, pace=pace, **options) as target,
        ReferenceServer(small, pace=draft_pace, **(draft_options or {})) as quick,
    ):
        config = {
            "version": 1,
            "providers": {
                "lab": {"profile": "reference", "base_url": target.base_url, "prices": PRICE},
                "cheap": {"profile": "reference", "base_url": quick.base_url, "prices": PRICE},
            },
            "drafts": {"mini": {"kind": "remote", "provider": "cheap", "model": "small"}},
            "models": {
                "m": {
                    "targets": ["lab:big"],
                    "drafts": ["mini"],
                    "policy": {
                        "preset": "fixed",
                        "method": method,
                        "exactness": "heuristic",
                        **(policy or {}),
                    },
                }
            },
        }
        async with AsyncSpecRoute(config=config) as client:
            yield Two(target, quick, client)

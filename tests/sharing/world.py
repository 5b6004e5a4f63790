"""Workers without requests: what they measure is put in by hand, and they visit when told to."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from specroute.config import parse
from specroute.http.supervisor import Supervisor
from specroute.measure import Measurements, Snapshot
from specroute.measured import Kept
from specroute.sharing import Sharing
from tests.support.redis_server import RedisServer

TARGET, DRAFT, TRAFFIC, HOW = "lab:big", "small", "chat#a/prose/1k", "argmax"


def config(url: str, **store: Any) -> Any:
    return parse(
        {
            "version": 1,
            "providers": {
                "lab": {"profile": "vllm", "base_url": "http://10.0.0.5/v1", "env_key": ""},
                "drafts": {"profile": "vllm", "base_url": "http://10.0.0.6/v1", "env_key": ""},
            },
            "drafts": {
                DRAFT: {"kind": "local", "model": "org/small"},
                "fleet": {"kind": "remote", "provider": "drafts", "model": "org/small"},
            },
            "models": {"smart": {"targets": [TARGET], "drafts": [DRAFT, "fleet"]}},
            "store": {"kind": "redis", "url": url, **store},
        },
        "test",
        {},
    )


class Worker:
    """One client's measurements and their exchange; ``wall`` is its clock's error in seconds."""

    def __init__(self, url: str, **store: Any) -> None:
        made = config(url, **store)
        self.seen = Measurements()
        self.now = 0.0
        self.skew = 0.0
        self.supervisor = Supervisor()
        self.sharing = Sharing(
            made,
            Kept(made),
            self.seen,
            self.supervisor,
            clock=lambda: time.monotonic() + self.now,
            wall=lambda: time.time() + self.skew,
            rng=random.Random(1),
        )

    def answer(self, n: int = 1, accepted: int = 3, verify_s: float = 0.05) -> None:
        """``n`` answers of four rounds, and as many plain ones."""
        at = time.time() + self.skew
        for _ in range(n):
            answer = object()
            for i in range(4):
                self.seen.round(
                    TARGET, DRAFT, TRAFFIC, drafted=4, accepted=accepted,
                    judged=min(accepted + 1, 4), draft_s=0.02, verify_s=verify_s, how=HOW,
                    context=100 + i, answer=answer, at=at,
                )  # fmt: skip
            self.seen.over(TARGET, DRAFT, TRAFFIC, answer, HOW)
            self.seen.plain(
                TARGET, TRAFFIC, ttft_s=0.1, tpot_s=0.03, tokens=80, prompt_tokens=100, at=at
            )

    @property
    def figures(self) -> Snapshot:
        return self.seen.snapshot(TARGET, DRAFT, TRAFFIC, HOW, prompt_tokens=100)

    async def joins(self) -> Worker:
        await self.sharing._join()
        await self.sharing.visit()
        return self

    async def visits(self, n: int = 1) -> None:
        for _ in range(n):
            await self.sharing.visit()

    async def aclose(self) -> None:
        await self.supervisor.aclose()
        await self.sharing.aclose()
        await self.sharing._server.aclose()


@asynccontextmanager
async def workers(server: RedisServer, n: int = 2, **store: Any) -> AsyncIterator[list[Worker]]:
    """So many that have joined."""
    made = [Worker(server.url, **store) for _ in range(n)]
    try:
        for each in made:
            await each.joins()
        yield made
    finally:
        for each in made:
            await each.aclose()

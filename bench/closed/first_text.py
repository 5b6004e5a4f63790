"""Provisional text on an API that shows nothing: how soon something is on the screen."""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome, ratio
from specroute import AsyncSpecRoute, Commit, Done, Provisional, Rollback
from specroute.reference import corpus
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.running import ReferenceServer

TITLE = "client.speculate(): closed chat API, TTFT 1800 ms, TPOT 40 ms (simulated), toy models"
PACE = "ttft=1800ms,tpot=40ms"
DRAFT_PACE = "ttft=250ms,tpot=8ms"
"""Of a cheap remote draft."""
PLAIN: dict[str, Any] = {"preset": "fixed", "method": "plain"}
MAX_TOKENS = 80


async def run(rounds: int) -> Outcome:
    found = Outcome()
    with (
        ReferenceServer(
            target_dir(), pace=PACE, disable=task.CLOSED, names=["closed"], process=True
        ) as target,
        ReferenceServer(draft_dir(), pace=DRAFT_PACE, names=["mini"], process=True) as draft,
    ):
        for kind in ("local", "remote"):
            await _kind(found, kind, target, draft, rounds)
    return found


async def _kind(
    found: Outcome, kind: str, target: ReferenceServer, draft: ReferenceServer, rounds: int
) -> None:
    made = task.config(target, PLAIN)
    made["models"]["m"]["drafts"] = ["d"]
    if kind == "local":
        made["drafts"] = {"d": {"kind": "local", "model": str(draft_dir()), "device": "cpu"}}
    else:
        made["providers"]["cheap"] = {"profile": "reference", "base_url": draft.base_url}
        made["drafts"] = {"d": {"kind": "remote", "provider": "cheap", "model": "mini"}}
    prompts = corpus.held_out("customer-service", rounds, seed=5)
    plain_s, first_s, same, confirmed, taken_back = [], [], 0, 0, 0
    async with AsyncSpecRoute(config=made) as client:
        await client.warm_up()
        for messages in prompts:
            text, first = await _plain(client, messages)
            plain_s.append(first)
            seen = _Seen()
            await seen.follow(client, messages)
            first_s.append(seen.first_s)
            same += seen.committed == text
            confirmed += seen.confirmed
            taken_back += seen.taken_back
    gain = ratio(plain_s, first_s)
    value, low, high = (f"{1 - 1 / r:.0%}" for r in (gain.value, gain.low, gain.high))
    found.rows.append(
        {
            "draft": kind,
            "plain TTFT s": f"{statistics.median(plain_s):.2f}",
            "first text s": f"{statistics.median(first_s):.2f}",
            "earlier by": f"{value} ({low}–{high})",
            "characters confirmed": f"{confirmed}",
            "taken back": f"{taken_back}",
            "identical": f"{same}/{len(prompts)}",
        }
    )
    found.held[f"{kind}: first text at least 60 % earlier"] = 1 - 1 / gain.value >= 0.6
    found.held[f"{kind}: committed text is the plain answer"] = same == len(prompts)


async def _plain(client: AsyncSpecRoute, messages: Any) -> tuple[str, float]:
    started, first, text = time.perf_counter(), 0.0, ""
    stream = await client.chat.completions.create(
        model="m", messages=messages, stream=True, temperature=0, max_tokens=MAX_TOKENS
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.perf_counter() - started
            text += chunk.choices[0].delta.content
    return text, first


class _Seen:
    """A screen and its clock."""

    def __init__(self) -> None:
        self.committed = self.provisional = ""
        self.first_s = 0.0
        self.confirmed = self.taken_back = 0

    async def follow(self, client: AsyncSpecRoute, messages: Any) -> None:
        started = time.perf_counter()
        async for event in client.speculate(
            model="m", messages=messages, temperature=0, max_tokens=MAX_TOKENS
        ):
            match event:
                case Provisional(text):
                    self.first_s = self.first_s or time.perf_counter() - started
                    self.provisional += text
                case Rollback(n):
                    self.provisional = self.provisional[:-n]
                    self.taken_back += n
                case Commit(text):
                    self.first_s = self.first_s or time.perf_counter() - started
                    self.committed += text
                    self.confirmed += min(len(text), len(self.provisional))
                    self.provisional = self.provisional[len(text) :]
                case Done():
                    pass

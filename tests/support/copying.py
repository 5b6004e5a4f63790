"""A target that repeats what it is shown, so that a look-up drafts it, and a client that asks it to."""

from __future__ import annotations

from typing import Any

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from specroute.types import Report


def words(count: int) -> str:
    """A text of so many different words."""
    return " ".join(f"w{i}" for i in range(count))


def repeating(text: str, pace: str) -> ReferenceServer:
    """The target ``x``."""
    script = Script({"name": "x", "answers": [{"when": "copy", "text": text}]})
    return ReferenceServer(script, pace=pace, names=["x"])


def config(url: str, policy: Any, **provider: Any) -> dict[str, Any]:
    """One model ``m``, drafted for by look-up."""
    return {
        "version": 1,
        "shadow": {"share": 0},
        "providers": {"lab": {"profile": "reference", "base_url": url, **provider}},
        "models": {"m": {"targets": ["lab:x"], "drafts": ["ngram"], "policy": policy}},
    }


async def ask(client: AsyncSpecRoute, text: str, max_tokens: int = 60) -> Report:
    """One streamed answer's report."""
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": f"copy {text}"}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
    )
    async for _chunk in stream:
        pass
    return report(stream)

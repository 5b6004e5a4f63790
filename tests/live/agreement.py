"""How often a server's greedy answers agree: with themselves, and with speculative ones.

A server can differ from itself at T = 0: alone or in a batch, generated or read as a prompt, its
kernels add in another order. So speculation is held against plain calls made in those same ways:
again, resumed from random cuts of the answer, and under load. Knows no server by name.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from specroute import AsyncSpecRoute, Report, report
from specroute.comparison import NEAR_TIE
from specroute.target import prefill
from tests.live.servers import NAME, Server

CUTS = 2
"""Random cuts an answer, from each of which it is resumed."""


@dataclass(frozen=True)
class Said:
    """One streamed greedy answer, in the pieces that it came in."""

    pieces: tuple[str, ...]
    finish: str | None
    seconds: float
    report: Report | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def agrees(self, other: Said) -> bool:
        """The same text and end. A ``bounded`` answer was put together from text, whose tokens the
        server counts otherwise: cut off by the limit a little earlier or later it still agrees."""
        if other.report is not None and other.report.exactness == "bounded":
            return _resumed_agrees(self, other)
        return (self.text, self.finish) == (other.text, other.finish)


@dataclass
class Plain:
    """One prompt's plain answer and the plain answers that it is held against, by kind."""

    prompt: str
    said: Said
    others: dict[str, list[Said]] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        """Whether the server agreed with itself every time."""
        return all(
            _resumed_agrees(self.said, o) if kind == "resumed" else self.said.agrees(o)
            for kind, others in self.others.items()
            for o in others
        )

    def agreeing(self, kind: str) -> tuple[int, int]:
        """(how many of that kind agreed, of how many)."""
        same = _resumed_agrees if kind == "resumed" else Said.agrees
        others = self.others.get(kind, [])
        return sum(same(self.said, o) for o in others), len(others)


def _resumed_agrees(whole: Said, resumed: Said) -> bool:
    """The cut answer's limit counts pieces, not tokens, so it may end a little earlier or later."""
    a, b = sorted((whole, resumed), key=lambda said: len(said.text))
    return b.text.startswith(a.text) and (a.text == b.text or a.finish == "length")


async def ask(
    client: openai.AsyncOpenAI,
    model: str,
    server: Server,
    prompt: str,
    tokens: int,
    resumed_from: str = "",
    dialect: str = "",
) -> Said:
    """One greedy answer, streamed; after ``resumed_from`` by that prefill dialect."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    if resumed_from:
        body = prefill.continued(body, resumed_from, dialect)
    messages = body.pop("messages")
    echo = prefill.PrefixEcho(resumed_from)
    began = time.perf_counter()
    pieces = [resumed_from] if resumed_from else []
    finish = None
    stream = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={**server.extra, **body},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if text := echo.feed(choice.delta.content or ""):
                pieces.append(text)
    if text := echo.flush():
        pieces.append(text)
    found = report(stream) if isinstance(client, AsyncSpecRoute) else None
    return Said(tuple(pieces), finish, time.perf_counter() - began, found)


async def plain_answers(
    server: Server, prompts: Sequence[str], tokens: int, dialect: str | None
) -> list[Plain]:
    """Each prompt plain, again, resumed (where ``dialect`` can) and two at a time."""
    rng = random.Random(0)
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:

        async def one(prompt: str) -> Said:
            return await ask(client, NAME, server, prompt, tokens)

        async def resumed(whole: Said, prompt: str) -> list[Said]:
            places = cuts(whole.pieces)
            return [
                await ask(
                    client, NAME, server, prompt, max(tokens - cut, 1),
                    "".join(whole.pieces[:cut]), dialect or "",
                )
                for cut in rng.sample(places, min(CUTS, len(places)))
            ]  # fmt: skip

        found: list[Plain] = []
        for prompt in prompts:
            plain = Plain(prompt, await one(prompt))
            plain.others["again"] = [await one(prompt)]
            if dialect:
                plain.others["resumed"] = await resumed(plain.said, prompt)
            found.append(plain)
        for i in range(0, len(found), 2):
            a, b = found[i], found[(i + 1) % len(found)]
            pair = await asyncio.gather(one(a.prompt), one(b.prompt))
            for plain, said in zip((a, b), pair, strict=True):
                plain.others["under load"] = [said]
        return found


def cuts(pieces: Sequence[str]) -> list[int]:
    """After which pieces a text can be cut so that a tokenizer cuts both parts as before: in front
    of a space, behind none."""
    return [
        i
        for i in range(1, len(pieces))
        if pieces[i].startswith(" ") and pieces[i - 1].strip() and not pieces[i - 1][-1].isspace()
    ]


@dataclass(frozen=True)
class Difference:
    """Where a speculative answer left the plain one. ``gap``: nats between the target's two best
    tokens there, ``None`` where it shows none."""

    prompt: str
    at: int
    shown: str
    gap: float | None
    steady: bool

    @property
    def explained(self) -> bool:
        return not self.steady or (self.gap is not None and self.gap < NEAR_TIE)

    def __str__(self) -> str:
        self_differs = "" if self.steady else "; plain differs from itself on this prompt, too"
        return f"{self.prompt[:32]!r} at character {self.at}: {self.shown}{self_differs}"


async def difference(server: Server, plain: Plain, other: Said, tokens: int) -> Difference:
    """The first place where ``other`` differs, with the target's two best tokens there."""
    a, b = plain.said.text, other.text
    at = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    said = f"plain {a[at : at + 12]!r}, speculative {b[at : at + 12]!r}"
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        answer = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": plain.prompt}],
            max_tokens=tokens,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
            extra_body=dict(server.extra),
        )
    choice = answer.choices[0]
    shown, length = choice.logprobs, 0
    if not (choice.message.content or "").startswith(a[:at]):
        return Difference(plain.prompt, at, said, None, plain.steady)  # It is another place now.
    for entry in (shown.content if shown else None) or ():
        length += len(entry.token)
        if length > at:
            best = sorted(entry.top_logprobs, key=lambda t: -t.logprob)[:2]
            if len(best) == 2:
                gap = best[0].logprob - best[1].logprob
                tops = ", ".join(f"{t.token!r} {t.logprob:.4f}" for t in best)
                return Difference(plain.prompt, at, f"{said}; {tops}", gap, plain.steady)
            break
    return Difference(plain.prompt, at, said, None, plain.steady)


async def speculative_answers(
    config: dict[str, Any], server: Server, plain: Sequence[Plain], tokens: int
) -> tuple[list[Said], list[str]]:
    """(the same prompts through the client, what its warm-up said is not to be had)."""
    async with AsyncSpecRoute(config=config) as client:
        problems = await client.warm_up()
        said = [await ask(client, "m", server, p.prompt, tokens) for p in plain]
    return said, problems


def config_for(
    server: Server,
    *,
    drafts: Sequence[str] = (),
    method: str = "score",
    k: int = 4,
    policy: dict[str, Any] | str | None = None,
    tokenizer: str | None = None,
    capabilities: dict[str, Any] | None = None,
    profile: str = "",
    remote: Server | None = None,
) -> dict[str, Any]:
    """A config with one model ``m`` on that server. ``remote``: where the draft ``far`` runs;
    ``profile``: another one than the server's own."""
    from tests.live.setup import MODEL

    config: dict[str, Any] = {
        "version": 1,
        "providers": {"lab": _provider(server, capabilities, profile)},
        "drafts": {"same": {"kind": "local", "model": str(MODEL), "dtype": "float32"}},
        "models": {
            "m": {
                "targets": [f"lab:{NAME}"],
                "drafts": list(drafts),
                "policy": policy
                or {"preset": "fixed", "method": method, "num_speculative_tokens": k},
            }
        },
    }
    if tokenizer:
        config["models"]["m"]["tokenizer"] = tokenizer
    if remote is not None:
        config["providers"]["beside"] = _provider(remote)
        config["drafts"]["far"] = {"kind": "remote", "provider": "beside", "model": NAME}
    return config


def _provider(
    server: Server, capabilities: dict[str, Any] | None = None, profile: str = ""
) -> dict[str, Any]:
    provider: dict[str, Any] = {
        "profile": profile or server.profile,
        "base_url": server.base_url,
        "env_key": "",
    }
    if capabilities:
        provider["capabilities"] = capabilities
    return provider

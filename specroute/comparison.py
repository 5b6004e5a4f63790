"""The same prompts plain and speculative, side by side, on one server in one run.

Knows how a streamed answer is timed and when two answers count as the same. Knows no server of its
own and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import openai

from specroute.client import AsyncSpecRoute
from specroute.reporting import report
from specroute.types import Report

NEAR_TIE = 0.05
"""Nats between a position's two most probable tokens below which kernels may flip them."""

Messages = Sequence[Mapping[str, Any]]
"""A chat's messages, as ``create`` takes them."""
OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One streamed answer. Seconds are wall-clock from the call to the last text."""

    text: str
    finish: str | None
    tokens: int
    seconds: float
    ttft_s: float
    report: Report | None = None

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first."""
        return (self.seconds - self.ttft_s) / max(self.tokens - 1, 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, both ways. ``excuse``: why a difference is the target's own, else ``""``."""

    plain: Run
    speculative: Run
    excuse: str = ""

    @property
    def identical(self) -> bool:
        a, b = self.plain, self.speculative
        return (a.text, a.finish) == (b.text, b.finish)

    @property
    def agrees(self) -> bool:
        """Identical, or different no more than the target differs from itself."""
        return self.identical or bool(self.excuse)


@dataclass(slots=True)
class Traffic:
    """One class of prompts and its pairs."""

    name: str
    pairs: list[Pair] = field(default_factory=list)

    def plain(self, value: Callable[[Run], float]) -> float:
        return sum(value(pair.plain) for pair in self.pairs)

    def speculative(self, value: Callable[[Run], float]) -> float:
        return sum(value(pair.speculative) for pair in self.pairs)

    @property
    def speedup(self) -> float:
        """Plain seconds over speculative seconds, all prompts together."""
        return self.plain(lambda r: r.seconds) / self.speculative(lambda r: r.seconds)

    @property
    def reports(self) -> list[Report]:
        return [p.speculative.report for p in self.pairs if p.speculative.report is not None]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``; means over prompts for ``ttft_s``, over tokens for ``tpot_s``."""
        reports = self.reports
        costs = [r.cost_usd for r in reports]
        return {
            "name": self.name,
            "prompts": len(self.pairs),
            "plain": _sums([p.plain for p in self.pairs]),
            "speculative": {
                **_sums([p.speculative for p in self.pairs]),
                "method": _most([r.method for r in reports]),
                "exactness": _loosest([r.exactness for r in reports]),
                "rounds": sum(r.rounds for r in reports),
                "drafted": sum(r.drafted for r in reports),
                "accepted": sum(r.accepted for r in reports),
                "cost_usd": None if None in costs else sum(c for c in costs if c is not None),
                "billed_prompt_tokens": _total([r.billed_prompt_tokens for r in reports]),
                "billed_completion_tokens": _total([r.billed_completion_tokens for r in reports]),
            },
            "speedup": self.speedup,
            "identical": all(p.identical for p in self.pairs),
            "differing": [p.excuse or "unexplained" for p in self.pairs if not p.identical],
        }


def _sums(runs: list[Run]) -> dict[str, Any]:
    tokens = sum(r.tokens for r in runs)
    after_first = sum(r.seconds - r.ttft_s for r in runs)
    return {
        "seconds": sum(r.seconds for r in runs),
        "ttft_s": sum(r.ttft_s for r in runs) / len(runs),
        "tpot_s": after_first / max(tokens - len(runs), 1),
        "tokens": tokens,
    }


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _most(values: list[str]) -> str:
    return max(dict.fromkeys(values), key=values.count) if values else "plain"


def _loosest(labels: list[str]) -> str:
    order = ("exact", "exact-greedy", "bounded", "heuristic")
    return max(labels, key=order.index) if labels else "exact"


async def stream(
    client: openai.AsyncOpenAI,
    model: str,
    messages: Messages,
    max_tokens: int,
    on_text: OnText = lambda text: None,
) -> Run:
    """One greedy answer, streamed and timed."""
    started = time.perf_counter()
    first = last = None
    parts: list[str] = []
    finish, tokens, chunks = None, None, 0
    chat: Any = list(messages)
    answer = await client.chat.completions.create(
        model=model,
        messages=chat,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in answer:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                last = time.perf_counter()
                first = first or last
                chunks += 1
                parts.append(choice.delta.content)
                on_text(choice.delta.content)
    ended = last or time.perf_counter()
    found = report(answer) if isinstance(client, AsyncSpecRoute) else None
    return Run(
        "".join(parts),
        finish,
        tokens if tokens is not None else chunks,
        ended - started,
        (first or ended) - started,
        found,
    )


async def compare(
    plain: openai.AsyncOpenAI,
    speculative: AsyncSpecRoute,
    models: tuple[str, str],
    prompts: Sequence[Messages],
    max_tokens: int,
    on_text: Callable[[str, str], None] = lambda which, text: None,
) -> AsyncIterator[Pair]:
    """Each prompt plain and speculative, one after the other, taking turns at going first."""
    sides = {"speculative": speculative}
    async for pairs in compare_sides(plain, sides, models, prompts, max_tokens, on_text):
        yield pairs["speculative"]


async def compare_sides(
    plain: openai.AsyncOpenAI,
    sides: Mapping[str, AsyncSpecRoute],
    models: tuple[str, str],
    prompts: Sequence[Messages],
    max_tokens: int,
    on_text: Callable[[str, str], None] = lambda which, text: None,
) -> AsyncIterator[dict[str, Pair]]:
    """As :func:`compare`, with several speculating clients beside one plain answer."""
    names = ["plain", *sides]
    for i, messages in enumerate(prompts):
        runs: dict[str, Run] = {}
        turn = i % len(names)
        for name in (*names[turn:], *names[:turn]):
            client, model = (sides[name], models[1]) if name in sides else (plain, models[0])

            def shown(text: str, name: str = name) -> None:
                on_text(name, text)

            runs[name] = await stream(client, model, messages, max_tokens, shown)
        a = runs["plain"]
        pairs = {name: Pair(a, runs[name]) for name in sides}
        for name, pair in pairs.items():
            if not pair.identical:
                b = pair.speculative
                why = await excuse(plain, models[0], messages, max_tokens, a, b)
                pairs[name] = replace(pair, excuse=why)
        yield pairs


async def excuse(
    plain: openai.AsyncOpenAI, model: str, messages: Messages, max_tokens: int, a: Run, b: Run
) -> str:
    """Why two greedy answers differ, if that is the target's own doing; ``""`` if it isn't.

    The target is asked again: it disagrees with itself, or its two best tokens at the first
    difference are within :data:`NEAR_TIE` of each other.
    """
    again = await stream(plain, model, messages, max_tokens)
    if again.text != a.text:
        return "the target disagrees with itself"
    shared = next(
        (i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y),
        min(len(a.text), len(b.text)),
    )
    chat: Any = list(messages)
    try:
        answer = await plain.chat.completions.create(
            model=model,
            messages=chat,
            max_tokens=max_tokens,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
        )
    except openai.APIStatusError:
        return ""
    shown = answer.choices[0].logprobs
    length = 0
    for entry in (shown.content if shown else None) or ():
        length += len(entry.token)
        if length > shared:
            top = sorted((t.logprob for t in entry.top_logprobs), reverse=True)
            if len(top) == 2 and top[0] - top[1] < NEAR_TIE:
                return f"a near-tie: {top[0] - top[1]:.4f} nats between the two best tokens"
            return ""
    return ""

"""Who asks what, and when: held-out customer-service questions and the moments they come at.

Knows rates, and how one answer is streamed and timed from its moment on. Knows no settings and no
servers; the same arguments give the same questions and moments on every machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from specroute import report
from specroute.reference import corpus
from specroute.reference.pace import Pace
from specroute.types import Report

MAX_TOKENS = 160
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end. Seconds from its moment."""

    text: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    tokens: int
    """Of prompt and answer, as a plain call shows them."""
    cached_tokens: int
    """Of the prompt, as ``usage`` says."""
    report: Report | None
    error: str | None = None
    """Why there is no answer, or not all of it: a request that failed."""


def questions(count: int) -> list[Messages]:
    """Customer-service questions that training never saw."""
    return corpus.held_out("customer-service", count, seed=7)


def warming(count: int) -> list[Messages]:
    """Other ones, for what a client does at its first requests only."""
    return corpus.held_out("customer-service", count, seed=99)


def capacity(pace: Pace, prompt: float, answer: float) -> float:
    """c: the requests a second that the paced target can answer when it generates every token."""
    return 1 / (answer * pace.load + prompt / pace.prefill)


def arrivals(rates: Sequence[float]) -> list[float]:
    """Poisson moments, in seconds from the first: each request's own rate, seeded."""
    rng, now, moments = random.Random(1), 0.0, []
    for rate in rates:
        now += rng.expovariate(rate)
        moments.append(now)
    return moments


async def ask(client: Any, model: str, messages: Messages, at: float) -> Answer:
    """Stream one greedy answer at its moment (``time.perf_counter``), and count from then: what a
    busy client takes to get to it is the caller's wait as well."""
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
    try:
        return await _streamed(client, model, messages, at)
    except openai.OpenAIError as error:
        took = time.perf_counter() - at
        return Answer("", took, took, 0, 0, 0, None, f"{type(error).__name__}: {error}")


async def _streamed(client: Any, model: str, messages: Messages, at: float) -> Answer:
    first, parts, usage = None, [], None
    stream = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first = first or time.perf_counter()
            parts.append(text)
    end = time.perf_counter()
    try:
        found: Report | None = report(stream)
    except LookupError:  # Plain openai.
        found = None
    details = usage.prompt_tokens_details
    return Answer(
        "".join(parts),
        (first or end) - at,
        end - at,
        usage.prompt_tokens,
        usage.completion_tokens,
        (details.cached_tokens or 0) if details else 0,
        found,
    )

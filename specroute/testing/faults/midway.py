"""Faults in the middle of an answer, and answers that are not what they seem.

"n tokens" are pieces of content as the toy model sends them. An answer that is not streamed has
none on the wire: there the fault comes in the middle of the body.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from specroute.testing import edits
from specroute.testing.exchange import Answer, Exchange, Fault
from specroute.testing.faults.named import ERROR, Named, dumps


def cut(after: int = 0) -> Fault:
    """``after`` tokens, then the connection breaks (RST)."""

    async def play(exchange: Exchange) -> None:
        async with _begun(exchange, after):
            await exchange.reset()

    return Named(f"cut({after})", play)


def ends_early(after: int = 0) -> Fault:
    """``after`` tokens, then the body ends in good order, with neither ``finish_reason`` nor
    ``[DONE]``: what a crashed worker behind a proxy looks like."""

    async def play(exchange: Exchange) -> None:
        async with _begun(exchange, after):
            await exchange.end()

    return Named(f"ends_early({after})", play)


def stall(after: int = 0) -> Fault:
    """``after`` tokens, then silence on an open connection."""

    async def play(exchange: Exchange) -> None:
        async with _begun(exchange, after):
            await exchange.wait()

    return Named(f"stall({after})", play)


def keep_alives(after: int = 0, every: float = 0.02) -> Fault:
    """``after`` tokens, then nothing but comments, for ever."""

    async def play(exchange: Exchange) -> None:
        async with _begun(exchange, after):
            while not exchange.gone.is_set():
                await exchange.write(b": keep-alive\n\n")
                await exchange.wait(every)

    return Named(f"keep_alives({after})", play)


def malformed_event(after: int = 0) -> Fault:
    """One event that is no JSON after ``after`` tokens; the rest is healthy."""
    return _inserted("malformed_event", after, b'data: {"choices": [{"delta": \n\n')


def error_event(after: int = 0) -> Fault:
    """After ``after`` tokens an error object instead of the rest, and a good end of the stream."""

    async def play(exchange: Exchange) -> None:
        async with _begun(exchange, after):
            await exchange.write(b"data: " + dumps(ERROR) + b"\n\n")
            await exchange.write(b"data: [DONE]\n\n")
            await exchange.end()

    return Named(f"error_event({after})", play)


def no_done() -> Fault:
    """A stream without ``[DONE]``; its ``finish_reason`` is there. (Healthy all the same.)"""
    return edited("no_done()", event=lambda data: data, done=False)


def slow_tokens(seconds: float) -> Fault:
    """A healthy stream with a pause before each event."""

    async def play(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            await exchange.start(answer.status, answer.headers)
            async for event in answer.events():
                await exchange.wait(seconds)
                await exchange.write(event)
            await exchange.end()

    return Named(f"slow_tokens({seconds:g})", play)


def edited(
    name: str,
    *,
    whole: Callable[[Any], Any] | None = None,
    event: Callable[[Any], Any] | None = None,
    done: bool = True,
) -> Fault:
    """The healthy answer with its JSON changed.

    ``whole`` and ``event`` take a decoded answer or event and return it changed (``None``: leave it
    out). ``done=False``: no ``[DONE]``.
    """

    async def play(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            if not answer.streamed:
                data = await answer.body()
                if whole is not None and answer.status < 300:
                    data = dumps(whole(json.loads(data)))
                await exchange.send(answer.status, data, answer.headers)
                return
            await exchange.start(answer.status, answer.headers)
            async for one in answer.events():
                if one.startswith(b"data: [DONE]"):
                    if done:
                        await exchange.write(one)
                elif event is None:
                    await exchange.write(one)
                else:
                    changed = event(json.loads(one.removeprefix(b"data: ")))
                    if changed is not None:
                        await exchange.write(b"data: " + dumps(changed) + b"\n\n")
            await exchange.end()

    return Named(name, play)


def lies(how: str) -> Fault:
    """Logprobs that can't be trusted, in a whole answer on /completions.

    ``how``: ``generated_only`` (echo ignored), ``shifted`` (each is its neighbour's), ``positive``,
    ``nulls``, ``fewer`` (an entry is missing), ``uneven`` (lists of different lengths), ``missing``
    (none at all), ``other_tokens``.
    """
    if how not in edits.LIES:
        raise ValueError(f"lies: expected one of {', '.join(edits.LIES)}, got {how!r}")
    return edited(f"lies({how!r})", whole=edits.LIES[how])


def _inserted(name: str, after: int, event: bytes) -> Fault:
    async def play(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            if not answer.streamed:
                data = await answer.body()
                await exchange.send(answer.status, data[: len(data) // 2], answer.headers)
                return
            await exchange.start(answer.status, answer.headers)
            sent = 0
            async for one in answer.events():
                if sent == after and _is_content(one):
                    await exchange.write(event)
                    sent += 1
                sent += _is_content(one)
                await exchange.write(one)
            await exchange.end()

    return Named(f"{name}({after})", play)


@asynccontextmanager
async def _begun(exchange: Exchange, after: int) -> AsyncIterator[None]:
    """The head and the first ``after`` tokens of the healthy answer have left."""
    async with exchange.answer() as answer:
        await exchange.start(answer.status, answer.headers)
        if answer.streamed:
            await _tokens(exchange, answer, after)
        else:
            data = await answer.body()
            await exchange.write(data[: len(data) // 2])
        yield


async def _tokens(exchange: Exchange, answer: Answer, after: int) -> None:
    sent = 0
    async for event in answer.events():
        if _is_content(event):
            if sent == after:
                return
            sent += 1
        elif b'"finish_reason":"' in event or event.startswith(b"data: [DONE]"):
            return
        await exchange.write(event)


def _is_content(event: bytes) -> bool:
    """Whether an event carries text (the toy model's role event and its end don't)."""
    if not event.startswith(b"data: {"):
        return False
    choices = json.loads(event[6:]).get("choices") or [{}]
    choice = choices[0]
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))

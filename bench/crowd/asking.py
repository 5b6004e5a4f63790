"""Two ways to ask: through the SDK, and over a bare socket where the client isn't what is measured.

Knows the wire; knows nothing of crowds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bench.crowd.questions import Question

Ask = Callable[[str, Question, bool], Awaitable["Outcome"]]
"""Model, question, whether streamed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request: its text, or ``error``. Seconds from its start."""

    text: str
    seconds: float
    ttft_s: float
    error: str | None = None
    method: str | None = None
    """By the report, where there is one."""


def by_sdk(client: Any) -> Ask:
    """Through ``AsyncSpecRoute``, as an app does."""
    from specroute import report

    async def ask(model: str, question: Question, stream: bool) -> Outcome:
        started, first, parts = time.perf_counter(), None, []
        method = None
        try:
            answer = await client.chat.completions.create(
                model=model,
                messages=question.messages,
                max_tokens=2 * len(question.answer),
                temperature=0,
                stream=stream,
            )
            if stream:
                async for chunk in answer:
                    text = chunk.choices[0].delta.content if chunk.choices else None
                    if text:
                        first = first or time.perf_counter()
                        parts.append(text)
            else:
                parts.append(answer.choices[0].message.content or "")
            method = report(answer).method
        except Exception as error:  # noqa: BLE001 - counted
            return Outcome("", time.perf_counter() - started, 0.0, _said(error))
        ended = time.perf_counter()
        return Outcome("".join(parts), ended - started, (first or ended) - started, method=method)

    return ask


def by_socket(url: str) -> Ask:
    """Over a connection of its own, read to its end and decoded then."""
    host, port = urlsplit(url).hostname, urlsplit(url).port

    async def ask(model: str, question: Question, stream: bool) -> Outcome:
        body = json.dumps(
            {
                "model": model,
                "messages": question.messages,
                "max_tokens": 2 * len(question.answer),
                "temperature": 0,
                "stream": stream,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json"
            f"\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        started, first, got = time.perf_counter(), None, []
        writer = None
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode() + body)
            while data := await reader.read(65536):
                got.append(data)
                if first is None and b'"content":"' in data:
                    first = time.perf_counter()
            ended = time.perf_counter()
            text = _decoded(b"".join(got), stream)
        except Exception as error:  # noqa: BLE001 - counted
            return Outcome("", time.perf_counter() - started, 0.0, _said(error))
        finally:
            if writer is not None:
                writer.close()
        return Outcome(text, ended - started, (first or ended) - started)

    return ask


def _decoded(raw: bytes, stream: bool) -> str:
    head, _, rest = raw.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status != 200:
        raise ValueError(f"status {status}: {rest[:200]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            parts.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        rest = b"".join(parts)
    if not stream:
        return str(json.loads(rest)["choices"][0]["message"]["content"])
    said, done = [], False
    for event in rest.split(b"\n\n"):
        data = event.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            done = True
        elif data.startswith(b"{"):
            chunk = json.loads(data)
            if "error" in chunk:
                raise ValueError(str(chunk["error"]))
            said += [c["delta"].get("content") or "" for c in chunk["choices"]]
    if not done:
        raise ValueError("the stream ended without [DONE]")
    return "".join(said)


def _said(error: Exception) -> str:
    cause = error.__cause__
    said = f"{type(error).__name__}: {error}"
    return (said if cause is None else f"{said} ({type(cause).__name__}: {cause})")[:300]

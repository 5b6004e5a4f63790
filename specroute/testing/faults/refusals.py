"""Faults before any answer, and answers that are none: silence, broken connections, error statuses,
web pages, nonsense."""

from __future__ import annotations

from typing import Any

from specroute.testing.exchange import STREAM, Exchange, Fault, head
from specroute.testing.faults.named import ERROR, Named, dumps, healthy, renamed


def silence() -> Fault:
    """Accept the request and never answer."""

    async def play(exchange: Exchange) -> None:
        await exchange.wait()

    return Named("silence()", play)


def reset() -> Fault:
    """Break the connection (RST) instead of answering."""

    async def play(exchange: Exchange) -> None:
        await exchange.reset()

    return Named("reset()", play)


def hang_up() -> Fault:
    """Close the connection in good order (FIN) instead of answering."""

    async def play(exchange: Exchange) -> None:
        await exchange.close()

    return Named("hang_up()", play)


def delayed(seconds: float) -> Fault:
    """Wait before a healthy answer."""

    async def play(exchange: Exchange) -> None:
        await exchange.wait(seconds)
        await healthy(exchange)

    return Named(f"delayed({seconds:g})", play)


def slow_headers(seconds: float) -> Fault:
    """Spread the head of a healthy answer over ``seconds``, a few bytes at a time."""

    async def play(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            data = head(answer.status, answer.headers, STREAM)
            for at in range(0, len(data), 8):
                await exchange.raw(data[at : at + 8])
                await exchange.wait(seconds * 8 / len(data))
            exchange.chunked()
            async for piece in answer.pieces():
                await exchange.write(piece)
            await exchange.end()

    return Named(f"slow_headers({seconds:g})", play)


def status(
    code: int,
    message: str = "the server had an error",
    *,
    kind: str = "server_error",
    error_code: str | None = None,
    **headers: str,
) -> Fault:
    """An error status with OpenAI's error object. ``headers``: underscores become hyphens."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": error_code}}
    sent = [(name.replace("_", "-"), value) for name, value in headers.items()]

    async def play(exchange: Exchange) -> None:
        await exchange.send(code, dumps(body), sent)

    told = f", {error_code!r}" if error_code else ""
    return Named(f"status({code}{told})", play)


def rate_limited(retry_after: float | None = None, retry_after_ms: float | None = None) -> Fault:
    """429, with ``Retry-After`` (seconds) or ``retry-after-ms`` where given."""
    headers = []
    if retry_after is not None:
        headers.append(("retry-after", f"{retry_after:g}"))
    if retry_after_ms is not None:
        headers.append(("retry-after-ms", f"{retry_after_ms:g}"))
    body = {
        "error": {
            "message": "Rate limit reached for requests",
            "type": "requests",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }

    async def play(exchange: Exchange) -> None:
        await exchange.send(429, dumps(body), headers)

    shown = ", ".join(f"{k}: {v}" for k, v in headers)
    return Named(f"rate_limited({shown})", play)


def server_error() -> Fault:
    """500."""
    return status(500)


def unauthorized() -> Fault:
    """401: the key is wrong."""
    return status(
        401,
        "Incorrect API key provided",
        kind="invalid_request_error",
        error_code="invalid_api_key",
    )


def insufficient_quota() -> Fault:
    """429 that no waiting helps against: the account has no money left."""
    return status(
        429,
        "You exceeded your current quota, please check your plan and billing details.",
        kind="insufficient_quota",
        error_code="insufficient_quota",
    )


def body(data: bytes, content_type: str = "application/json", code: int = 200) -> Fault:
    """Exactly these bytes."""

    async def play(exchange: Exchange) -> None:
        await exchange.send(code, data, content_type=content_type)

    return Named(f"body({data[:20]!r})", play)


def html() -> Fault:
    """A web page with status 200, as a captive portal or a wrong path gives."""
    return renamed("html()", body(b"<!doctype html><title>Sign in</title>", "text/html"))


def empty() -> Fault:
    """Status 200 and nothing else."""
    return renamed("empty()", body(b""))


def invalid_json() -> Fault:
    """An answer that is no JSON."""
    return renamed("invalid_json()", body(b'{"id": "chatcmpl-1", "choices": [{'))


def wrong_shape() -> Fault:
    """JSON that is no answer."""
    return renamed("wrong_shape()", body(b"[1, 2, 3]"))


def error_in_200() -> Fault:
    """An error object with status 200."""
    return renamed("error_in_200()", body(dumps(ERROR)))


def whole_answer() -> Fault:
    """The whole answer as JSON, although a stream was asked for. (A right answer all the same.)"""

    async def play(exchange: Exchange) -> None:
        exchange.request.body = dumps(_unstreamed(exchange))
        await healthy(exchange)

    return Named("whole_answer()", play)


def wrong_content_type(content_type: str = "text/plain") -> Fault:
    """A healthy answer under another name."""

    async def play(exchange: Exchange) -> None:
        async with exchange.answer() as answer:
            answer.headers = [(k, v) for k, v in answer.headers if k != "content-type"]
            answer.headers.append(("content-type", content_type))
            await exchange.start(answer.status, answer.headers)
            async for piece in answer.pieces():
                await exchange.write(piece)
            await exchange.end()

    return Named(f"wrong_content_type({content_type!r})", play)


def _unstreamed(exchange: Exchange) -> dict[str, Any]:
    asked = dict(exchange.request.json)
    asked.pop("stream", None)
    asked.pop("stream_options", None)
    return asked

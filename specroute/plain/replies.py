"""What came back for a plain call, as the reply that the caller gets.

Knows answers, error statuses and what stands in the place of a stream. Knows no attempts.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx2

from specroute.errors import ErrorInBody, ProviderError, StatusError
from specroute.exchange import Reply, ReplyBody, RouterRequest
from specroute.http import wire
from specroute.http.client import HttpClient
from specroute.http.reply import OpenReply
from specroute.plain.passthrough import PlainStream, Recovery
from specroute.plain.tally import PlainTally
from specroute.reporting import ReportHandle

ERROR_BODY_S = 5.0
"""How long the text of an error may take to come: its status is enough to go on."""
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error status, read: the provider's own body and headers, as they are."""

    reply: OpenReply
    body: bytes
    http: HttpClient

    @classmethod
    async def read(cls, reply: OpenReply, http: HttpClient) -> Refusal:
        try:
            async with asyncio.timeout(ERROR_BODY_S):
                body = await reply.read()
        except (ProviderError, TimeoutError):
            body = b""  # The status alone is the answer.
            await reply.aclose()
        return cls(reply, body, http)

    def error(self) -> StatusError:
        """The same as an error, where it is too late for a reply."""
        return self.http.status_error(self.reply.status, self.reply.headers, self.body)


def refused(refusal: Refusal, tally: PlainTally | None, taken: int) -> Reply:
    """The reply for an error status."""
    reply, provider = refusal.reply, refusal.http.provider
    if tally is not None:
        said = wire.status_message(reply.status, refusal.body)
        tally.end(f"status {reply.status}", complete=False, error=said)
    answer = _reply(reply, refusal.body, provider.name, taken)
    if reply.status in (404, 405):
        answer.hint = wire.base_url_hint(provider.base_url)
    return answer


async def answered(
    reply: OpenReply,
    name: str,
    tally: PlainTally | None,
    taken: int,
    whole: bool,
    request: RouterRequest,
    recovery: Recovery | None,
) -> Reply:
    """The answer: the body's bytes, read here where the caller wants it ``whole``.

    ``recovery``: whom a stream asks to go on when it breaks off.
    """
    if tally is None:
        return _reply(reply, await reply.read() if whole else reply, name, taken)
    if not whole:
        kind = reply.headers.get("content-type", "")
        if "json" not in kind and "html" not in kind:
            stream = PlainStream(reply, tally, name, request.choices, recovery)
            return _reply(reply, stream, name, taken)
    reply.keep()
    try:
        body = await reply.read()
        data = wire.read_object(body, provider=name, headers=reply.headers)
        failure = wire.error_in(data)
        if failure is not None:
            raise ErrorInBody(
                wire.error_message(failure, "an error came inside a 200 answer"),
                provider=name,
                body=failure,
            )
        wire.check_answer(data, provider=name)
    except BaseException as error:
        reply.settle(None, error)
        raise
    tally.answered(data)
    reply.settle(tally.usage)
    if whole:
        answer = _reply(reply, body, name, taken)
        answer.data = data
        return answer
    # A whole answer where a stream was asked for: made into the stream it should have been.
    answer = _reply(reply, wire.as_chunks(data), name, taken)
    answer.headers = _without(answer.headers, "content-type", "content-length")
    answer.headers["content-type"] = "text/event-stream; charset=utf-8"
    return answer


def speculated(body: bytes | ReplyBody, provider: str, handle: ReportHandle) -> Reply:
    """An answer that was speculated on."""
    whole = isinstance(body, bytes)
    return Reply(
        200,
        httpx2.Headers(_JSON if whole else _EVENTS),
        body,
        json.loads(body) if isinstance(body, bytes) else None,
        handle,
        provider=provider,
    )


def _reply(reply: OpenReply, body: bytes | ReplyBody, provider: str, taken: int) -> Reply:
    headers = reply.headers
    if reply.decoded:
        headers = _without(headers, "content-encoding", "content-length")
    reason = reply.response.extensions.get("reason_phrase")
    return Reply(
        reply.status,
        headers,
        body,
        retries=taken,
        provider=provider,
        sent=reply.response.request,
        extensions={} if reason is None else {"reason_phrase": reason},
        encoded=reply.encoded,
    )


def _without(headers: httpx2.Headers, *names: str) -> httpx2.Headers:
    copy = httpx2.Headers(headers)
    for name in names:
        copy.pop(name, None)
    return copy

"""What passes between the seam, the router and whoever speculates. Values alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2

from specroute.config import (
    FALLBACK_ON,
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
)
from specroute.continuing import Standby
from specroute.draft.ahead import Ahead
from specroute.errors import ProviderError, RequestError
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.overheard import Overheard
from specroute.recorder import Trace
from specroute.reporting import ReportHandle
from specroute.request import Options
from specroute.types import Attempt, Exactness, Report, TargetRef

OnReport = Callable[[Report], Awaitable[None] | None]


@dataclass(slots=True)
class RouterRequest:
    """One HTTP request of the caller.

    ``path`` is relative to the API's base (``/chat/completions``). ``fields``: what is known of
    the JSON body without decoding it (``model``, ``stream``, ``stream_options``, ``specroute``,
    ``n``, ``prompt``); ``None``: decode to find out. ``connect_s``, ``read_s``: the caller's own
    timeouts, ``None`` where unset. ``outgoing``: the request to send as it is (a plain client's
    own), with its URL and credentials. ``whole``: the caller wants the body read before the reply
    is handed over.
    """

    method: str
    path: str
    query: str = ""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | AsyncIterable[bytes] | None = None
    fields: Mapping[str, Any] | None = None
    connect_s: float | None = None
    read_s: float | None = None
    max_retries: int = 2
    replayable: bool = True
    whole: bool = True
    follow_redirects: bool = True
    policy: PolicyConfig | None = None
    on_report: OnReport | None = None
    outgoing: httpx2.Request | None = None
    send_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> int:
        """How many choices a text call's answer has, as far as ``fields`` tell."""
        fields = self.fields or {}
        count, prompt = fields.get("n"), fields.get("prompt")
        count = count if isinstance(count, int) and count > 1 else 1
        many = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return count * len(prompt) if many and isinstance(prompt, list) else count

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; :class:`RequestError` when it is none."""
        try:
            value = json.loads(self.body) if isinstance(self.body, bytes) else None
        except ValueError as error:
            raise RequestError("the request's body is not JSON") from error
        if not isinstance(value, dict):
            raise RequestError("the request's body is not a JSON object")
        return value


@dataclass(slots=True)
class Reply:
    """What the caller gets: a status, headers, and a body that is there or still arriving.

    ``retries``: attempts made before this one. ``sent``: the request that got it. Whoever shows a
    whole answer adds the report of ``handle`` to it as the field ``specroute``.
    """

    status: int
    headers: httpx2.Headers
    body: bytes | ReplyBody
    data: dict[str, Any] | None = None
    """``body`` decoded, where that was done anyway."""
    handle: ReportHandle | None = None
    retries: int = 0
    provider: str = ""
    sent: httpx2.Request | None = None
    hint: str | None = None
    """For an error status: what to check."""
    extensions: Mapping[str, Any] = field(default_factory=dict)
    encoded: bool = False
    """``body`` is under the ``Content-Encoding`` that its headers name."""


class ReplyBody(Protocol):
    """A body still arriving. Closing it, dropping it or leaving it unread ends the upstream."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a ``model=`` stands for."""

    asked: str
    target: TargetRef
    provider: ProviderConfig
    model: ModelConfig | None
    others: tuple[TargetRef, ...] = ()
    """Further targets, in order of preference."""
    notes: tuple[str, ...] = ()
    """Why some of the configured ones are not among them."""
    meant: TargetRef | None = None
    """The user's first choice, where the policy chose another one."""

    @property
    def targets(self) -> tuple[TargetRef, ...]:
        """All that may answer, the preferred one first."""
        return (self.target, *self.others)

    @property
    def fallback_on(self) -> tuple[str, ...]:
        return FALLBACK_ON if self.model is None else self.model.fallback_on


@dataclass(slots=True)
class TextCall:
    """A chat or completions call, as whoever speculates on it sees it.

    ``body`` is the caller's JSON with the target's own model name and without ``specroute``.
    ``headers`` are the caller's own, without credentials.
    """

    path: str
    body: dict[str, Any]
    resolved: Resolved
    options: Options
    policy: PolicyConfig | None
    """Set for this request or this client; ``None``: the model's own."""
    deadline: Deadline
    max_retries: int
    headers: Sequence[tuple[str, str]]
    handle: ReportHandle
    http: HttpClient
    announce: Callable[[ReportHandle], None]
    """Told of a report that belongs to no request of the caller's."""
    drafted: Callable[[int, str], None] | None = None
    """Told of each draft (its place in the answer, its text), where the caller wants to see it."""
    trace: Trace | None = None
    """This request's line, where requests are recorded."""
    overheard: Overheard | None = None
    """Set by whoever speculates: keeps the plain answer, to be read afterwards."""
    standby: Standby | None = None
    """Who goes on with the answer where its target fails."""
    substitute: tuple[Exactness, str] | None = None
    """What the answer is worth at most, and why, where ``resolved`` is not the preferred target."""
    failed: ProviderError | None = None
    """Set by whoever speculates: the target itself failed, not what was tried beside it."""


class Speculation(Protocol):
    """Where cleverer answers plug in."""

    def preferred(
        self,
        path: str,
        body: Mapping[str, Any],
        targets: Sequence[TargetRef],
        model: ModelConfig,
        policy: PolicyConfig | None,
    ) -> TargetRef:
        """Of a model's interchangeable targets the one that the policy chooses for a request."""
        ...

    async def try_run(self, call: TextCall) -> bytes | ReplyBody | str:
        """The answer's body (JSON, or a stream of chunks), or one sentence why it goes plain."""
        ...

    def ahead(
        self, call: TextCall, booked: Callable[[Attempt], None], note: Callable[[str], None]
    ) -> Ahead | None:
        """Drafting beside a plain answer, for a caller who wants to see provisional text."""
        ...

    async def warm_up(self, announce: Callable[[ReportHandle], None]) -> list[str]:
        """Get ready ahead of the first request; one sentence for each thing not to be had."""
        ...

    def retire(self) -> None:
        """Another one answers from now on: free what only this one has after its last request."""
        ...

    async def aclose(self) -> None:
        """Free what it holds; idempotent."""
        ...

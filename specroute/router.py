"""The composition root: ``handle(request) -> Reply``, whatever stands in front of it.

Knows which provider a request is for, makes the plain call (upstream bytes are forwarded, not
decoded), retries it under one deadline and keeps its report. Everything that is not a chat or
completions call is passed through. Deliberately does not know openai's package, and only the seam
``Speculation`` of anything cleverer than plain.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import inf
from typing import Any

import httpx2

from specroute.config import (
    Config,
    PolicyConfig,
    ProviderConfig,
    Timeouts,
    parse_policy,
    provider_for,
)
from specroute.errors import (
    ConfigError,
    DeadlineExceeded,
    ErrorInBody,
    ProviderError,
    RequestError,
    UnknownModel,
)
from specroute.exchange import (
    OnReport,
    Reply,
    ReplyBody,
    Resolved,
    RouterRequest,
    Speculation,
    TextCall,
)
from specroute.http import retry, wire
from specroute.http.client import LIMITS, Call, HttpClient
from specroute.http.deadline import Deadline
from specroute.http.reply import OpenReply
from specroute.http.supervisor import Supervisor
from specroute.ledger import Price, price_for
from specroute.passthrough import PlainStream, PlainTally
from specroute.probed import refined
from specroute.profiles import Capabilities, capabilities_for, load_profile, profile_names
from specroute.reporting import FIELD, ReportHandle, register
from specroute.request import CHAT, COMPLETIONS, Options
from specroute.types import Report, TargetRef

log = logging.getLogger("specroute")


# Headers that belong to one hop, one host or one account, and so never reach another.
_OWN_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
        "transfer-encoding",
        "x-api-key",
        "x-goog-api-key",
    }
)
PRICE_LASTS_S = 60.0
"""Some prices change by the hour; looking one up for every call would cost more than the call."""
RETRY_COUNT = "x-stainless-retry-count"
"""openai's header that says how often a request was sent before."""
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


class Router:
    """Answers requests by a config.

    ``http_client``: the httpx2 client to reach every provider with, never closed here; without
    one, an own one is made. ``on_report`` is called with each final report; what it raises is
    logged. ``direct``: the plain client: requests go where they are addressed, as they are.
    """

    def __init__(
        self,
        config: Config,
        *,
        http_client: httpx2.AsyncClient | None = None,
        on_report: OnReport | None = None,
        speculation: Speculation | None = None,
        direct: bool = False,
    ) -> None:
        self.config = config
        self.direct = direct
        self.supervisor = Supervisor()
        self.speculation = speculation or self._speculator()
        self._on_report = on_report
        self._own_client = http_client is None
        self.http_client = http_client or httpx2.AsyncClient(limits=LIMITS, timeout=None)
        self._clients: dict[str, HttpClient] = {}
        self._capabilities: dict[tuple[str, str], Capabilities] = {}
        self._timeouts: dict[tuple[str, float | None, float | None, bool], Timeouts] = {}
        self._resolved: dict[str, Resolved] = {}
        self._prices: dict[str, tuple[float, Price | None]] = {}
        self._default = config.default_provider or (
            next(iter(config.providers)) if len(config.providers) == 1 else None
        )
        self._rng = random.Random()
        self.closed = False

    def _speculator(self) -> Speculation | None:
        """Whoever speculates; nobody (and nothing loaded) where no model has drafts."""
        if not any(model.drafts for model in self.config.models.values()):
            return None
        from specroute.speculator import Speculator

        return Speculator(self.config, self.http, self.supervisor)

    def __repr__(self) -> str:
        return f"Router({self.config.source!r}, models={sorted(self.config.models)!r})"

    # Who answers

    def resolve(self, name: str) -> Resolved:
        """``model=`` to a target: a configured name, ``provider:model``, or the default provider's.

        :class:`UnknownModel` lists the configured names.
        """
        found = self._resolved.get(name)
        if found is None:
            found = self._resolve(name)
            if len(self._resolved) < 1024:
                self._resolved[name] = found
        return found

    def _resolve(self, name: str) -> Resolved:
        config = self.config
        model = config.models.get(name)
        if model is not None:
            target = model.targets[0]
            return Resolved(name, target, provider_for(config, target.provider), model)
        if not self.direct and ":" in name:
            provider, _, rest = name.partition(":")
            # A name such as llama3:8b is the default provider's, unless it names a declared one.
            if provider in config.providers or (
                config.default_provider is None and provider in profile_names()
            ):
                return Resolved(
                    name, TargetRef(provider, rest), provider_for(config, provider), None
                )
        default = config.default_provider or (None if config.models else self._default)
        if default is not None:
            return Resolved(name, TargetRef(default, name), provider_for(config, default), None)
        known = sorted(config.models)
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownModel(
            f"model {name!r} is not configured{hint}; known: {', '.join(known) or 'none'}. "
            "'provider:model' names one at a provider; default_provider takes any other",
            param="model",
            code="model_not_found",
        )

    def http(self, provider: ProviderConfig) -> HttpClient:
        """The client for one provider."""
        client = self._clients.get(provider.name)
        if client is None:
            client = self._clients[provider.name] = HttpClient(
                provider,
                client=self.http_client,
                profile_auth=load_profile(provider.profile).auth,
                supervisor=self.supervisor,
            )
        return client

    def capabilities(self, resolved: Resolved) -> Capabilities:
        """What a target can do, as far as profile and config say."""
        key = (resolved.provider.name, resolved.target.model)
        found = self._capabilities.get(key)
        if found is None:
            profile = load_profile(resolved.provider.profile)
            provider, model = resolved.provider, resolved.target.model
            found = refined(
                capabilities_for(profile, provider, model),
                provider.base_url,
                model,
                provider.capabilities,
            )
            if len(self._capabilities) < 1024:
                self._capabilities[key] = found
        return found

    def timeouts(
        self, provider: ProviderConfig, request: RouterRequest, *, streamed: bool = True
    ) -> Timeouts:
        """The limits of one request: the config's, capped by the caller's.

        Of an answer that comes at once nothing comes before all of it is made: ``first_token``
        counts for it only where the config sets it. A plain client has the caller's alone, for
        each attempt, and no total: openai's are none either.
        """
        key = (provider.name, request.connect_s, request.read_s, streamed)
        found = self._timeouts.get(key)
        if found is None:
            connect = inf if request.connect_s is None else request.connect_s
            read = inf if request.read_s is None else request.read_s
            own = provider.timeouts
            if self.direct:
                idle = 0.0 if read == inf else max(read, own.idle)
                found = Timeouts(
                    connect=connect, first_token=read, stall=read, total=inf, idle=idle
                )
            else:
                first = own.first_token
                if not streamed and "first_token" not in provider.timeouts_set:
                    first = inf
                found = replace(
                    own,
                    connect=min(own.connect, connect),
                    first_token=min(first, read),
                    stall=min(own.stall, read),
                )
            if len(self._timeouts) < 256:
                self._timeouts[key] = found
        return found

    def price_of(self, target: str) -> Price | None:
        """What a ``provider:model`` costs now; ``None`` where that isn't known."""
        now = time.monotonic()
        found = self._prices.get(target)
        if found is None or now - found[0] > PRICE_LASTS_S:
            ref = TargetRef.parse(target)
            provider = provider_for(self.config, ref.provider)
            price = price_for(provider, load_profile(provider.profile), ref.model)
            found = (now, price)
            if len(self._prices) < 1024:
                self._prices[target] = found
        return found[1]

    def redact(self, text: str) -> str:
        """``text`` without any provider's key."""
        return wire.redact(text, (p.api_key for p in self.config.providers.values()))

    def redactor(self, request: RouterRequest) -> Callable[[str], str]:
        """As :meth:`redact`, and without the key that a plain client's own request carries (a
        copy's, or one that a function gave)."""
        if request.outgoing is None:
            return self.redact
        key = request.outgoing.headers.get("authorization", "").removeprefix("Bearer ")
        return lambda text: wire.redact(self.redact(text), (key,))

    # Answering

    async def handle(self, request: RouterRequest) -> Reply:
        """Answer one request. An error status of the provider's is a reply; whatever else goes
        wrong is raised (:mod:`specroute.errors`). Nothing is retried after the first byte."""
        if request.method == "POST" and request.path.endswith((CHAT, COMPLETIONS)):
            fields = request.fields
            if fields is None and isinstance(request.body, bytes):
                try:
                    fields = request.json()
                except RequestError:
                    fields = None
            if fields is not None and isinstance(fields.get("model"), str):
                return await self._text(request, fields)
        return await self._other(request)

    async def _text(self, request: RouterRequest, fields: Mapping[str, Any]) -> Reply:
        if FIELD in fields:
            options = Options.read(fields[FIELD])
            body = request.json()
            body.pop(FIELD, None)
            request.body = wire.dumps(body)
            self._rewrite(request)
        else:
            options = Options()
        policy = _policy(options, request)
        resolved = self.resolve(fields["model"])
        if resolved.target.model != resolved.asked:
            assert isinstance(request.body, bytes)
            request.body = wire.replace_model(request.body, resolved.asked, resolved.target.model)
            self._rewrite(request)
        streamed = fields.get("stream") is True
        deadline = Deadline(self.timeouts(resolved.provider, request, streamed=streamed))
        redact = self.redactor(request)
        tally = PlainTally(resolved.asked, resolved.target, deadline, self.price_of, redact)
        handle = tally.handle
        self._announce(handle, request.on_report)
        reason = "no model of this client has drafts"
        if self.speculation is not None:
            call = TextCall(
                path=CHAT if request.path.endswith(CHAT) else COMPLETIONS,
                body=request.json(),
                resolved=resolved,
                options=options,
                policy=policy,
                deadline=Deadline(self.timeouts(resolved.provider, request)),
                max_retries=request.max_retries,
                headers=_forwardable(request.headers),
                handle=handle,
                http=self.http(resolved.provider),
                announce=lambda handle: self._announce(handle, request.on_report),
            )
            outcome = await self.speculation.try_run(call)
            if not isinstance(outcome, str):
                return _speculated(outcome, resolved.provider.name, handle)
            reason = outcome
        tally.reason = reason
        reply = await self._plain(request, fields, resolved, tally)
        reply.handle = handle
        return reply

    async def _plain(
        self,
        request: RouterRequest,
        fields: Mapping[str, Any],
        resolved: Resolved,
        tally: PlainTally,
    ) -> Reply:
        tally.handle.live = tally.report
        stream = fields.get("stream") is True
        if stream and self._adds_usage(fields, resolved):
            assert isinstance(request.body, bytes)
            if request.body.rstrip().endswith(b"}"):
                request.body = wire.splice_field(
                    request.body, "stream_options", b'{"include_usage":true}'
                )
                self._rewrite(request)
                tally.own_usage = True
        http = self.http(resolved.provider)
        try:
            return await self._attempts(request, http, tally.deadline, tally, whole=not stream)
        except BaseException as error:
            tally.fail(error)
            raise

    def _adds_usage(self, fields: Mapping[str, Any], resolved: Resolved) -> bool:
        return (
            fields.get("stream_options") is None
            and self.capabilities(resolved).stream_usage is True
        )

    async def _other(self, request: RouterRequest) -> Reply:
        """Pass anything else through, both ways, to the provider it belongs to."""
        provider = self._provider_of(request)
        streamed = (request.fields or {}).get("stream") is True
        deadline = Deadline(self.timeouts(provider, request, streamed=streamed))
        return await self._attempts(
            request, self.http(provider), deadline, None, whole=request.whole
        )

    def _provider_of(self, request: RouterRequest) -> ProviderConfig:
        fields = request.fields
        if fields is None and isinstance(request.body, bytes) and _is_json(request.headers):
            try:
                fields = request.json()
            except RequestError:
                fields = None
        name = fields.get("model") if fields is not None else None
        if isinstance(name, str) and not self.direct:
            try:
                resolved = self.resolve(name)
            except UnknownModel:
                if self._default is None:
                    raise
            else:
                if resolved.target.model != name and isinstance(request.body, bytes):
                    request.body = wire.replace_model(request.body, name, resolved.target.model)
                return resolved.provider
        if self._default is None:
            raise RequestError(
                f"{request.method} {request.path} names no configured model, so it is not clear "
                "which provider it is for: set default_provider in the config "
                f"({', '.join(sorted(self.config.providers)) or 'no provider'})"
            )
        return provider_for(self.config, self._default)

    async def _attempts(
        self,
        request: RouterRequest,
        http: HttpClient,
        deadline: Deadline,
        tally: PlainTally | None,
        *,
        whole: bool,
    ) -> Reply:
        call = self._call(request)
        taken = 0
        while True:
            if taken and self.direct:
                # A plain client's timeouts are openai's: each attempt has its own.
                deadline = Deadline(deadline.timeouts, deadline.clock)
            more = taken < request.max_retries and request.replayable
            started = deadline.clock()
            try:
                reply = await http.send(call, deadline, decode=tally is not None)
                if tally is not None:
                    tally.started_at = started
                    tally.request_id = reply.request_id
                if reply.status < 400:
                    return await self._answered(reply, http.provider.name, tally, taken, whole)
                now = time.time()
                wait = retry.delay(taken, reply.headers, now, self._rng)
                if not (
                    more
                    and retry.status_retryable(reply.status, reply.headers, now)
                    and (self.direct or wait < deadline.remaining("first_token"))
                ):
                    return await self._refused(reply, http, tally, taken)
                await reply.drain()
                outcome = f"status {reply.status}"
            except ProviderError as error:
                wait = retry.delay(taken, None, 0.0, self._rng)
                retryable = retry.error_retryable(error) or (
                    self.direct and isinstance(error, DeadlineExceeded)
                )
                in_time = self.direct or wait < deadline.remaining("first_token")
                if not (more and retryable and in_time):
                    raise
                outcome = error.outcome
            if tally is not None:
                tally.attempt(outcome, deadline.clock() - started)
            log.info("%s: retrying in %.2f s after %s", http.provider.name, wait, outcome)
            await asyncio.sleep(wait)
            taken += 1
            self._count_retry(call, taken)

    def _call(self, request: RouterRequest) -> Call:
        if self.direct and request.outgoing is not None:
            return Call(
                request=request.outgoing,
                follow_redirects=request.follow_redirects,
                send_options=request.send_options,
            )
        headers = _forwardable(request.headers)
        content = request.body
        if content is not None and not isinstance(content, bytes):
            # A body that is not ours keeps the length it was announced with.
            headers += [(k, v) for k, v in request.headers if k.lower() == "content-length"]
            content = _Pieces(content)
        return Call(
            method=request.method,
            path=request.path,
            query=request.query,
            headers=headers,
            content=content,
            follow_redirects=request.follow_redirects,
        )

    def _rewrite(self, request: RouterRequest) -> None:
        """The body changed: a request to be sent as it is needs the new one."""
        old = request.outgoing
        if self.direct and old is not None:
            headers = [
                (k, v) for k, v in old.headers.multi_items() if k.lower() != "content-length"
            ]
            request.outgoing = httpx2.Request(
                old.method,
                old.url,
                headers=headers,
                content=request.body,
                extensions=old.extensions,
            )

    def _count_retry(self, call: Call, taken: int) -> None:
        """Bump openai's retry header where it counts ours (not where the caller set its own)."""
        before = str(taken - 1)
        if call.request is not None:
            if call.request.headers.get(RETRY_COUNT) == before:
                call.request.headers[RETRY_COUNT] = str(taken)
        else:
            call.headers = [
                (k, str(taken)) if k.lower() == RETRY_COUNT and v == before else (k, v)
                for k, v in call.headers
            ]
            call.built = None

    # What came back

    async def _refused(
        self, reply: OpenReply, http: HttpClient, tally: PlainTally | None, taken: int
    ) -> Reply:
        """An error status: the provider's own body and headers, as they are."""
        try:
            body = await reply.read()
        except ProviderError:
            body = b""  # The status alone is the answer.
        if tally is not None:
            said = wire.status_message(reply.status, body)
            tally.end(f"status {reply.status}", complete=False, error=said)
        answer = _reply(reply, body, http.provider.name, taken)
        if reply.status in (404, 405):
            answer.hint = wire.base_url_hint(http.provider.base_url)
        return answer

    async def _answered(
        self, reply: OpenReply, name: str, tally: PlainTally | None, taken: int, whole: bool
    ) -> Reply:
        if tally is None:
            return _reply(reply, await reply.read() if whole else reply, name, taken)
        if not whole:
            kind = reply.headers.get("content-type", "")
            if "json" not in kind and "html" not in kind:
                return _reply(reply, PlainStream(reply, tally, name), name, taken)
        body = await reply.read()
        kind = reply.headers.get("content-type", "")
        data = wire.read_object(body, provider=name, content_type=kind)
        error = wire.error_in(data)
        if error is not None:
            raise ErrorInBody(
                wire.error_message(error, "an error came inside a 200 answer"),
                provider=name,
                body=error,
            )
        tally.answered(data)
        if whole:
            answer = _reply(reply, body, name, taken)
            answer.data = data
            return answer
        # A whole answer where a stream was asked for: made into the stream it should have been.
        answer = _reply(reply, wire.as_chunks(data), name, taken)
        answer.headers = _without(answer.headers, "content-type", "content-length")
        answer.headers["content-type"] = "text/event-stream; charset=utf-8"
        return answer

    # Reports

    async def warm_up(self, on_report: OnReport | None = None) -> list[str]:
        """Load drafts and calibrate targets ahead of the first request.

        Returns one sentence for each thing that is not to be had (its requests go plain).
        """
        if self.speculation is None:
            return []
        return await self.speculation.warm_up(lambda handle: self._announce(handle, on_report))

    def _announce(self, handle: ReportHandle, on_report: OnReport | None) -> None:
        """Show a report to the caller's ``reports()`` blocks and callback."""
        register(handle)
        callback = on_report or self._on_report
        if callback is not None:
            handle.on_finish(lambda report: self._tell(callback, report))

    def _tell(self, callback: OnReport, report: Report) -> None:
        try:
            result = callback(report)
            if inspect.isawaitable(result):
                self.supervisor.spawn(_await(result), name="on_report")
        except Exception:
            log.exception("on_report failed")

    async def aclose(self) -> None:
        """End what still runs and close what was made here; idempotent."""
        if self.closed:
            return
        self.closed = True
        await self.supervisor.aclose()
        if self.speculation is not None:
            await self.speculation.aclose()
        if self._own_client:
            await self.http_client.aclose()


class _Pieces:
    """A streamed body, asynchronous and nothing else (httpx2's own multipart body is both)."""

    def __init__(self, body: AsyncIterable[bytes]) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()


async def _await(value: Awaitable[None]) -> None:
    await value


def _policy(options: Options, request: RouterRequest) -> PolicyConfig | None:
    if options.policy is None:
        return request.policy
    try:
        return parse_policy(options.policy, "specroute.policy")
    except ConfigError as error:
        raise RequestError(str(error), param="specroute.policy") from error


def _forwardable(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(k, v) for k, v in headers if k.lower() not in _OWN_HEADERS]


def _without(headers: httpx2.Headers, *names: str) -> httpx2.Headers:
    copy = httpx2.Headers(headers)
    for name in names:
        copy.pop(name, None)
    return copy


def _is_json(headers: Sequence[tuple[str, str]]) -> bool:
    return any(k.lower() == "content-type" and "json" in v for k, v in headers)


def _speculated(body: bytes | ReplyBody, provider: str, handle: ReportHandle) -> Reply:
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
    )

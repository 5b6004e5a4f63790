"""The composition root: ``handle(request) -> Reply``, whatever stands in front of it.

Knows which calls are text and which are passed through, whom to ask first and whose the report is.
Deliberately does not know openai's package, and only the seam ``Speculation`` of anything cleverer
than plain. Who answers is ``routes``' matter, how often one is asked ``attempts``'.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2

from specroute.config import Config, PolicyConfig, ProviderConfig, parse_policy
from specroute.errors import ConfigError, RequestError
from specroute.exchange import OnReport, Reply, Resolved, RouterRequest, Speculation, TextCall
from specroute.health import Health
from specroute.http import wire
from specroute.http.client import HttpClient, own_client
from specroute.http.deadline import Deadline
from specroute.http.gate import Gate
from specroute.http.supervisor import Supervisor
from specroute.itinerary import substitute
from specroute.limits.ceiling import purse_for
from specroute.limits.gate import LimitGate
from specroute.limits.purse import Purse, held
from specroute.plain.legs import other_attempts, text_attempts
from specroute.plain.outgoing import forwardable, rewrite
from specroute.plain.replies import speculated
from specroute.plain.tally import PlainTally
from specroute.preview import Preview
from specroute.recorder import Recorder, Trace
from specroute.reporting import FIELD, ReportHandle, register
from specroute.request import CHAT, COMPLETIONS, Options
from specroute.routes import Routes
from specroute.store import MemoryStore, Store, make_store
from specroute.telemetry import Telemetry, make_telemetry
from specroute.types import Report

log = logging.getLogger("specroute")


NO_OPTIONS = Options()


class Router:
    """Answers requests by a config.

    ``http_client``: the httpx2 client to reach every provider with, never closed here; without
    one, an own one is made. ``on_report`` is called with each final report; what it raises is
    logged. ``direct``: the plain client: requests go where they are addressed, as they are.
    ``gates``: asked before each call to a provider, told how it went. ``store``: where limits and
    budgets are kept, shared and never closed here; without one, an own one is made by the config.
    ``telemetry``: told of every request; by default, whatever is installed and configured.
    """

    def __init__(
        self,
        config: Config,
        *,
        http_client: httpx2.AsyncClient | None = None,
        on_report: OnReport | None = None,
        speculation: Speculation | None = None,
        direct: bool = False,
        gates: Sequence[Gate] = (),
        store: Store | None = None,
        telemetry: Telemetry | None = None,
        before: Router | None = None,
    ) -> None:
        self.direct = direct
        self.supervisor: Supervisor = Supervisor() if before is None else before.supervisor
        self._gates = gates
        self._store = store
        self._telemetry = telemetry
        self._on_report = on_report
        self._own_client = http_client is None
        self.http_client = http_client or own_client()
        self.health: Health = Health() if before is None else before.health
        self._own_store = make_store(config.store) if store is None else None
        limits = LimitGate(
            store or self._own_store or MemoryStore(),
            lambda target: self.routes.price_of(target),
            daily_usd=lambda: self.config.daily_usd,
        )
        self.telemetry = telemetry or make_telemetry(
            config, lambda name: self.config.providers.get(name)
        )
        watching = (*gates, limits, *self.telemetry.gates)
        if not direct:
            watching = (self.health, *watching)
        self.routes: Routes = Routes(
            config, self.http_client, self.supervisor, direct=direct, gates=watching
        )
        self._price_of = self.routes.price_of
        self.speculation = speculation or self._speculator(before)
        self.recorder: Recorder | None = None
        if before is not None and before.config.record == config.record:
            self.recorder = before.recorder
        elif config.record is not None:
            self.recorder = Recorder(config.record, self.supervisor, self.routes.price_of)
        self._older: list[Recorder | Speculation] = []
        """Of configs before: requests that began with them may still need them."""
        self._rng = random.Random()
        self.closed = False

    def _speculator(self, before: Router | None) -> Speculation | None:
        """Whoever speculates; nobody (and nothing loaded) where no model has drafts,
        interchangeable targets or hedged calls."""
        models = self.config.models.values()
        if not any(
            m.drafts or m.interchangeable or m.policy.params.get("method") == "hedge"
            for m in models
        ):
            return None
        from specroute.speculation.speculator import Speculator

        old = None if before is None else before.speculation
        old = old if isinstance(old, Speculator) else None
        return Speculator(self.config, self.http, self.supervisor, before=old)

    def successor(self, config: Config) -> Router:
        """A router by ``config`` in the place of this one.

        Connections, health, measurements, and the drafts and findings that still apply go over to
        it; requests that are under way end here, by the config they began with. What only this one
        has is freed after the last of them. Raises :class:`ConfigError`; then this one stays.
        """
        if self.direct:
            raise ConfigError("a client without a config has nothing to reload")
        if config.store != self.config.store:
            raise ConfigError(
                "store: can't be changed while the client runs; make a new client", config.source
            )
        made = Router(
            config,
            http_client=self.http_client,
            on_report=self._on_report,
            gates=self._gates,
            store=self._store or self._own_store,
            telemetry=self._telemetry,
            before=self,
        )
        made._own_client, made._own_store = self._own_client, self._own_store
        made._older = [*self._older]
        if self.recorder is not None and made.recorder is not self.recorder:
            made._older.append(self.recorder)
        if self.speculation is not None:
            made._older.append(self.speculation)
        return made

    def retire(self) -> None:
        """A successor answers from now on: free what is only this one's once nobody needs it."""
        if self.speculation is not None:
            self.speculation.retire()

    def __repr__(self) -> str:
        return f"Router({self.config.source!r}, models={sorted(self.config.models)!r})"

    @property
    def config(self) -> Config:
        """The config in force."""
        return self.routes.config

    def http(self, provider: ProviderConfig) -> HttpClient:
        """The client for one provider."""
        return self.routes.http(provider)

    def redact(self, text: str) -> str:
        """``text`` without any provider's key."""
        return self.routes.redact(text)

    def redactor(self, request: RouterRequest) -> Callable[[str], str]:
        """As :meth:`redact`, and without what the request itself carries."""
        return self.routes.redactor(request)

    # Answering

    async def handle(self, request: RouterRequest) -> Reply:
        """Answer one request. An error status of the provider's is a reply; whatever else goes
        wrong is raised (:mod:`specroute.errors`). Nothing is retried after the first byte."""
        fields = _text_fields(request)
        if fields is None:
            return await self._other(request)
        options = NO_OPTIONS
        if FIELD in fields:
            options = Options.read(fields[FIELD])
            body = request.json()
            body.pop(FIELD, None)
            request.body = wire.dumps(body)
            rewrite(request)
        policy = request.policy if options is NO_OPTIONS else _policy(options, request)
        resolved = self.routes.resolve(fields["model"])
        purse, capped = self._purse(options, request, resolved)
        streamed = fields.get("stream") is True
        chat = request.path.endswith(CHAT)
        tally = self._tally(request, resolved, capped, streamed=streamed)
        handle = tally.handle
        with (
            held(purse),
            self.telemetry.request(handle, chat=chat, asked=resolved.asked, streamed=streamed),
        ):
            trace = None if self.recorder is None else self._record(self.recorder, request, tally)
            if not options.provisional:
                return await self._answer(
                    request, fields, resolved, tally, options, policy, None, trace
                )
            if not streamed:
                raise RequestError(
                    "'specroute.provisional' shows text as it is drafted: it needs stream=True",
                    param="specroute.provisional",
                )
            model = resolved.target.model
            preview = Preview(self.supervisor, handle, tally.deadline, chat=chat, model=model)
            answer = partial(
                self._answer, request, fields, resolved, tally, options, policy, preview, trace
            )
            return await preview.of(answer)

    def _tally(
        self,
        request: RouterRequest,
        resolved: Resolved,
        capped: tuple[str, ...],
        *,
        streamed: bool,
    ) -> PlainTally:
        """What the request comes to; its report is announced. Its deadline runs from now on."""
        routes = self.routes
        deadline = Deadline(routes.limits(resolved, request, streamed=streamed))
        redact = routes.redactor(request)
        tally = PlainTally(resolved.asked, resolved.target, deadline, self._price_of, redact)
        tally.notes += (*resolved.notes, *capped)
        if capped:
            tally.handle.update(notes=capped)
        self._announce(tally.handle, request.on_report)
        return tally

    async def _answer(
        self,
        request: RouterRequest,
        fields: Mapping[str, Any],
        resolved: Resolved,
        tally: PlainTally,
        options: Options,
        policy: PolicyConfig | None,
        preview: Preview | None,
        trace: Trace | None,
    ) -> Reply:
        """Speculated on where that is possible, else plain; shown ahead of time in ``preview``."""
        handle = tally.handle
        resolved = self._chosen(request, resolved, policy)
        attempts = text_attempts(
            request, resolved, tally, fields, self.routes, self.health, self._rng
        )
        reason, failed = "no model of this client has drafts", None
        try:
            target = resolved.target if self.direct else await attempts.start()
            if self.speculation is not None:
                at = self.routes.at(resolved, target)
                call = self._call(request, at, policy, options, tally.deadline, handle)
                call.trace = trace
                call.standby = self.routes.standing_by(resolved, attempts.itinerary, self.health)
                call.substitute = substitute(attempts.itinerary.meant, target)
                call.drafted = None if preview is None else preview.drafted
                outcome = await self.speculation.try_run(call)
                if not isinstance(outcome, str):
                    return speculated(outcome, target.provider, handle)
                reason, failed = outcome, call.failed
                tally.overheard = tally.overheard or call.overheard
                if preview is not None:
                    ahead = self.speculation.ahead(call, preview.booked, preview.note)
                    if ahead is not None:
                        preview.draft_beside(ahead)
            tally.reason = reason
            tally.handle.live = tally.report
            reply = await attempts.run(target, failed)
        except BaseException as error:
            tally.fail(error)
            raise
        reply.handle = handle
        return reply

    def _chosen(
        self, request: RouterRequest, resolved: Resolved, policy: PolicyConfig | None
    ) -> Resolved:
        """With the target first that the policy chooses, where it may choose."""
        model = resolved.model
        if model is None or not model.interchangeable or self.speculation is None:
            return resolved
        targets = resolved.targets
        if len(targets) < 2:
            return resolved
        path = CHAT if request.path.endswith(CHAT) else COMPLETIONS
        first = self.speculation.preferred(path, request.json(), targets, model, policy)
        others = tuple(target for target in targets if target != first)
        return replace(self.routes.at(resolved, first), others=others, meant=resolved.target)

    def _purse(
        self, options: Options, request: RouterRequest, resolved: Resolved
    ) -> tuple[Purse | None, tuple[str, ...]]:
        """What this request may cost (``None``: anything), and a note if its answer was limited."""
        own = None if resolved.model is None else resolved.model.max_cost_usd
        if own is None and options.max_cost_usd is None:
            return None, ()
        limits = [usd for usd in (options.max_cost_usd, own) if usd is not None]
        target = str(resolved.target)
        price = self.routes.price_of(target)
        purse, cap = purse_for(min(limits), request.json(), price, target)
        if cap is None:
            return purse, ()
        name = self.routes.capabilities(resolved).max_tokens_param
        request.body = wire.dumps({**request.json(), name: cap})
        rewrite(request)
        said = f"{name} was set to {cap}, as long as max_cost_usd = {min(limits):g} lasts"
        return purse, (said,)

    def _call(
        self,
        request: RouterRequest,
        resolved: Resolved,
        policy: PolicyConfig | None,
        options: Options,
        deadline: Deadline,
        handle: ReportHandle,
    ) -> TextCall:
        """The call as whoever speculates on it sees it."""
        body = request.json()
        body["model"] = resolved.target.model
        own = self.routes.timeouts(resolved.provider, request)
        return TextCall(
            path=CHAT if request.path.endswith(CHAT) else COMPLETIONS,
            body=body,
            resolved=resolved,
            options=options,
            policy=policy,
            deadline=Deadline(own) if self.direct else deadline.within(own),
            max_retries=request.max_retries,
            headers=forwardable(request.headers),
            handle=handle,
            http=self.http(resolved.provider),
            announce=lambda handle: self._announce(handle, request.on_report),
        )

    async def _other(self, request: RouterRequest) -> Reply:
        """Pass anything else through, both ways, to the provider it belongs to."""
        provider = self.routes.provider_of(request)
        attempts = other_attempts(request, provider, self.routes, self.health, self._rng)
        return await attempts.run(attempts.itinerary.preferred)

    # Reports

    def _record(self, recorder: Recorder, request: RouterRequest, tally: PlainTally) -> Trace:
        """Have this request's line written when it is over."""
        path = CHAT if request.path.endswith(CHAT) else COMPLETIONS
        trace = recorder.trace(path, request.json())
        tally.overheard = trace.overheard
        tally.handle.on_finish(lambda report: recorder.finished(report, trace))
        return trace

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
                self.supervisor.spawn(_await(result), name="on_report", finish=True)
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
        for each in (self.recorder, *self._older):
            if each is not None:
                await each.aclose()
        if self._own_store is not None:
            await self._own_store.aclose()
        if self._own_client:
            await self.http_client.aclose()


def _text_fields(request: RouterRequest) -> Mapping[str, Any] | None:
    """What is known of a text call's body; ``None``: it is another call."""
    if request.method != "POST" or not request.path.endswith((CHAT, COMPLETIONS)):
        return None
    fields = request.fields
    if fields is None and isinstance(request.body, bytes):
        try:
            fields = request.json()
        except RequestError:
            return None
    return fields if fields is not None and isinstance(fields.get("model"), str) else None


async def _await(value: Awaitable[None]) -> None:
    await value


def _policy(options: Options, request: RouterRequest) -> PolicyConfig | None:
    if options.policy is None:
        return request.policy
    try:
        return parse_policy(options.policy, "specroute.policy")
    except ConfigError as error:
        raise RequestError(str(error), param="specroute.policy") from error

"""Spans and metrics by OpenTelemetry's API: one span a request, and below it one for each call.

Knows the API alone; without an SDK it does nothing, at the cost of a few calls. A request's span
carries what we did (``specroute.*``), a call's the conventions' ``gen_ai.*``: token usage is
on calls only, so that nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opentelemetry import context, metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from specroute.config import ProviderConfig, TelemetryConfig
from specroute.http.gate import Departure, Gate, Permit
from specroute.reporting import ReportHandle
from specroute.telemetry import names
from specroute.telemetry.log import log_request, outcome, wanted
from specroute.telemetry.make import ProviderOf
from specroute.types import Report, TargetRef, Usage

NOT_SHOWN = frozenset({"other", "render", "probe"})
"""Calls without a span: what is passed through, a server's own tokenizer, and probes."""

_NOT_SET_UP = frozenset(
    {"ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"}
)
"""Providers that stand for none: what is made with them goes nowhere."""
log = logging.getLogger("specroute")
T = TypeVar("T")

_NO_WORK: AbstractContextManager[None] = nullcontext()
_SPAN_FIELDS = (
    "id",
    "target",
    "method",
    "exactness",
    "drafter",
    "plan_reason",
    "complete",
    "finish_reason",
    "rounds",
    "drafted",
    "accepted",
    "rejected",
    "acceptance_rate",
    "ttft_s",
    "tpot_s",
    "draft_s",
    "cost_usd",
)


class OpenTelemetry:
    """``tracer`` and ``meter``: the app's own, by default those of its global providers."""

    def __init__(
        self,
        config: TelemetryConfig,
        provider_of: ProviderOf,
        tracer: Tracer | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._config = config
        self._provider_of = provider_of
        self._tracer = tracer or trace.get_tracer("specroute")
        self._own_tracer, self._own_meter = tracer is not None, meter is not None
        self._traces = config.traces and self._own_tracer
        self._measures = config.metrics and self._own_meter
        self._instruments = _instruments(meter or metrics.get_meter("specroute"))

    @property
    def gates(self) -> Sequence[Gate]:
        return (self,)

    def _look(self) -> None:
        """Whether anybody listens: an app may set OpenTelemetry up at any time."""
        if self._config.traces and not self._own_tracer:
            self._traces = type(trace.get_tracer_provider()).__name__ not in _NOT_SET_UP
        if self._config.metrics and not self._own_meter:
            self._measures = type(metrics.get_meter_provider()).__name__ not in _NOT_SET_UP

    # Requests

    def request(
        self, handle: ReportHandle, *, chat: bool, asked: str, streamed: bool
    ) -> AbstractContextManager[None]:
        operation = names.CHAT if chat else names.TEXT
        self._look()
        if wanted(self._config.log):
            handle.on_finish(lambda report: log_request(report, self._config.log))
        if self._measures:
            handle.on_finish(
                lambda report: _safely(lambda: self._measure(report, operation, streamed), None)
            )
        if not self._traces:
            return _NO_WORK
        none: Span = trace.INVALID_SPAN
        span = _safely(
            lambda: self._tracer.start_span(
                f"specroute {operation} {asked}", attributes={names.MODEL: asked}
            ),
            none,
        )
        return self._traced(span, handle) if span.is_recording() else _NO_WORK

    @contextmanager
    def _traced(self, span: Span, handle: ReportHandle) -> Iterator[None]:
        handle.on_finish(lambda report: _safely(lambda: _finish(span, report), None))
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            if not handle.done:
                _failed(span, type(error).__name__)
                _safely(span.end, None)
            raise
        finally:
            context.detach(token)

    def _measure(self, report: Report, operation: str, streamed: bool) -> None:
        target = None if report.target is None else TargetRef.parse(report.target)
        shared = self._attributes(
            *(("", None) if target is None else (target.provider, target.model))
        )
        shared[names.OPERATION] = operation
        failed = {} if report.complete else {names.ERROR_TYPE: outcome(report)}
        self._record(names.DURATION, report.total_s, {**shared, **failed})
        if streamed:
            self._record(names.FIRST_CHUNK, report.ttft_s, shared)
            self._record(names.PER_CHUNK, report.tpot_s, shared)
        own = {**shared, "specroute.method": report.method}
        self._record("specroute.cost", report.cost_usd, own)
        if report.complete and report.method != "plain":
            seconds, dollars = saved(report)
            self._record("specroute.saved.seconds", seconds, own)
            self._record("specroute.saved.dollars", dollars, own)
        if report.rounds:
            self._record("specroute.rounds", report.rounds, own)
            self._record("specroute.k", report.drafted / report.rounds, own)
        for what in ("drafted", "accepted", "rejected"):
            self._record(f"specroute.tokens.{what}", getattr(report, what) or None, own)
        self._record("specroute.acceptance_rate", report.acceptance_rate, own)

    def _record(self, name: str, value: float | None, attributes: Mapping[str, Any]) -> None:
        if value is not None:
            self._instruments[name](value, attributes)

    def _attributes(self, provider: str, model: str | None) -> dict[str, Any]:
        config = self._provider_of(provider)
        found: dict[str, Any] = _of_provider(config) if config else {names.PROVIDER: provider}
        if model:
            found[names.REQUEST_MODEL] = model
        return found

    # Calls

    def concerns(self, provider: ProviderConfig, purpose: str) -> bool:
        if purpose in NOT_SHOWN:
            return False
        if purpose != "plain":  # Always a request's, which has just looked.
            self._look()
        return self._traces or self._measures

    async def enter(self, departure: Departure) -> Permit:
        nothing: Permit = _NOTHING
        return _safely(lambda: self._watched(departure), nothing)

    def _watched(self, departure: Departure) -> Permit:
        if not self.concerns(departure.provider, departure.purpose):
            return _NOTHING
        traces, measures = self._traces, self._measures
        body = departure.content or b""
        attributes = {
            **_of_provider(departure.provider),
            names.OPERATION: names.CHAT if b'"messages"' in body else names.TEXT,
            names.PURPOSE: departure.purpose,
        }
        if departure.model:
            attributes[names.REQUEST_MODEL] = departure.model
        span = None
        if traces:
            span = self._tracer.start_span(
                f"{attributes[names.OPERATION]} {departure.model}".strip(),
                kind=SpanKind.CLIENT,
                attributes=attributes,
            )
            if span.is_recording():
                span.set_attributes(_of_body(body))
            else:
                span = None
        usage = self._instruments[names.TOKEN_USAGE] if measures else None
        return _NOTHING if span is None and usage is None else _Call(span, usage, attributes)


def saved(report: Report) -> tuple[float | None, float | None]:
    """Seconds and dollars less than a plain call was expected to take for the same answer."""
    took, cost = report.total_s, report.cost_usd
    seconds = None if took is None or report.plain_s is None else report.plain_s - took
    dollars = None if cost is None or report.plain_usd is None else report.plain_usd - cost
    return seconds, dollars


def _instruments(meter: Meter) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (kind, unit, buckets, description) in names.METRICS.items():
        if kind == "histogram":
            made[name] = meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=list(buckets)
            ).record
        elif kind == "counter":
            made[name] = meter.create_counter(name, unit, description).add
        else:
            made[name] = meter.create_up_down_counter(name, unit, description).add
    return made


def _of_provider(provider: ProviderConfig) -> dict[str, Any]:
    parts = urlsplit(provider.base_url)
    return {
        names.PROVIDER: names.PROVIDERS.get(provider.profile, provider.profile),
        "specroute.provider": provider.name,
        names.ADDRESS: parts.hostname or "",
        names.PORT: parts.port or (443 if parts.scheme == "https" else 80),
    }


def _of_body(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    shown = {
        names.MAX_TOKENS: limit,
        names.TEMPERATURE: body.get("temperature"),
        names.TOP_P: body.get("top_p"),
    }
    return {k: v for k, v in shown.items() if isinstance(v, int | float)}


def _safely(work: Callable[[], T], otherwise: T) -> T:
    """What ``work`` gives, ``otherwise`` where it fails: a span processor of the app's that raises
    breaks no answer."""
    try:
        return work()
    except Exception:
        log.exception("telemetry failed")
        return otherwise


def _finish(span: Span, report: Report) -> None:
    for name in _SPAN_FIELDS:
        value = getattr(report, name)
        if value is not None and value != "":
            span.set_attribute(names.OWN + name, value)
    seconds, dollars = saved(report)
    if seconds is not None:
        span.set_attribute("specroute.saved_s", seconds)
    if dollars is not None:
        span.set_attribute("specroute.saved_usd", dollars)
    if report.rounds:
        span.set_attribute("specroute.k", report.drafted / report.rounds)
    span.set_attribute("specroute.attempts", len(report.attempts))
    how = outcome(report)
    span.set_attribute(names.OUTCOME, how)
    if how not in ("ok", "cancelled"):
        _failed(span, how)
    span.end()


def _failed(span: Span, kind: str) -> None:
    # Without a description: what a provider says may quote the prompt.
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))


class _Nothing:
    """A call that nobody looks at."""

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        """Nothing to note."""

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        """Nothing to end."""


_NOTHING = _Nothing()


class _Call:
    """One call's span and its tokens."""

    __slots__ = ("_attributes", "_span", "_status", "_usage")

    def __init__(self, span: Span | None, usage: Any, attributes: Mapping[str, Any]) -> None:
        self._span = span
        self._usage = usage
        self._attributes = attributes
        self._status = 0

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        _safely(lambda: self._settle(usage, error), None)

    def _settle(self, usage: Usage | None, error: BaseException | None) -> None:
        if usage is not None and self._usage is not None:
            for kind, count in (
                ("input", usage.prompt_tokens),
                ("output", usage.completion_tokens),
            ):
                if count is not None:
                    self._usage(count, {**self._attributes, names.TOKEN_TYPE: kind})
        span = self._span
        if span is None:
            return
        if usage is not None:
            for name, count in (
                (names.INPUT_TOKENS, usage.prompt_tokens),
                (names.OUTPUT_TOKENS, usage.completion_tokens),
                (names.CACHED_TOKENS, usage.cached_tokens),
            ):
                if count is not None:
                    span.set_attribute(name, count)
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            span.set_attribute(names.OUTCOME, "cancelled")
        elif self._status >= 400:
            _failed(span, str(self._status))
        elif error is not None:
            _failed(span, getattr(error, "outcome", type(error).__name__))
        span.end()

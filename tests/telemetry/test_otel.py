"""Spans and metrics as the SDK's in-memory exporters get them."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from specroute import AsyncSpecRoute
from specroute.config import TelemetryConfig, parse
from specroute.reference.running import ReferenceServer
from specroute.router import Router
from specroute.speculation.speculator import Speculator
from specroute.store import MemoryStore
from specroute.telemetry import make_telemetry
from specroute.telemetry.make import LogOnly
from specroute.telemetry.otel import OpenTelemetry
from tests.client.test_lifecycle import endless
from tests.client.world import KEYS, MESSAGES, config
from tests.engine.world import World, speculating
from tests.limits.test_limits import answer
from tests.support.loopback import Exchange, Handler, Loopback

SECRET = "the caller's own words"
ASKED: Any = [{"role": "user", "content": SECRET}]


class Seen:
    """An SDK of the test's own."""

    def __init__(self, **chosen: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        traces, self.meters = TracerProvider(), MeterProvider([self.reader])
        traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.chosen = TelemetryConfig(**chosen)
        self.tracer, self.meter = traces.get_tracer("t"), self.meters.get_meter("t")

    def telemetry(self, of: Any) -> OpenTelemetry:
        return OpenTelemetry(self.chosen, of, self.tracer, self.meter)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def request(self) -> ReadableSpan:
        (found,) = [s for s in self.spans if s.name.startswith("specroute ")]
        return found

    @property
    def calls(self) -> list[ReadableSpan]:
        return [s for s in self.spans if s.kind is SpanKind.CLIENT]

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@asynccontextmanager
async def watched(
    handler: Handler = answer, **chosen: Any
) -> AsyncIterator[tuple[Loopback, AsyncSpecRoute, Seen]]:
    async with (
        Loopback(handler) as server,
        AsyncSpecRoute(config=config(server.url), max_retries=0) as client,
    ):
        seen, tables = Seen(**chosen), config(server.url)
        tables["providers"]["lab"]["prices"] = {"input": 10.0, "output": 40.0}
        found = parse(tables, environ=KEYS)
        client._seam.connections.answer_with(
            lambda up, store: Router(
                found,
                http_client=up,
                store=store,
                telemetry=seen.telemetry(found.providers.get),
            ),
            MemoryStore(),
        )
        yield server, client, seen


async def ask(client: AsyncSpecRoute, **more: Any) -> None:
    got = await client.chat.completions.create(
        **{"model": "smart", "messages": ASKED, "max_tokens": 20, "temperature": 0.5, **more}
    )
    if more.get("stream"):
        async for _ in got:
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_and_its_call(stream: bool) -> None:
    """Two spans, the second below the first; tokens are on the call alone."""
    async with watched() as (server, client, seen):
        await ask(client, stream=stream)
    (call,) = seen.calls
    request = seen.request
    assert (request.name, call.name) == ("specroute chat smart", "chat lab-model")
    assert call.parent is not None and call.parent.span_id == request.context.span_id
    assert dict(call.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "generic",
        "gen_ai.request.model": "lab-model",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "specroute.provider": "lab",
        "specroute.purpose": "plain",
    }
    shown = dict(request.attributes or {})
    assert not [name for name in shown if name.startswith("gen_ai.")]
    for name, value in {
        "model": "smart",
        "target": "lab:lab-model",
        "method": "plain",
        "exactness": "exact",
        "complete": True,
        "outcome": "ok",
        "attempts": 1,
        "rounds": 0,
    }.items():
        assert shown[f"specroute.{name}"] == value
    assert shown["specroute.cost_usd"] == pytest.approx(0.0003)


@pytest.mark.parametrize("stream", [False, True])
async def test_metrics_have_the_conventions_names(stream: bool) -> None:
    """A duration for each request, the times of chunks where it is streamed, tokens of each call."""
    async with watched() as (server, client, seen):
        await ask(client, stream=stream)
        await ask(client, stream=stream)
    found = seen.metrics()
    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "generic",
        "gen_ai.request.model": "lab-model",
        "specroute.provider": "lab",
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    (duration,) = found["gen_ai.client.operation.duration"]
    assert (duration.count, dict(duration.attributes)) == (2, shared)
    assert duration.explicit_bounds[:2] == (0.01, 0.02)
    tokens = {p.attributes["gen_ai.token.type"]: p.sum for p in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": 20, "output": 10}
    for name in ("time_to_first_chunk", "time_per_output_chunk"):
        assert (f"gen_ai.client.operation.{name}" in found) is stream
    (cost,) = found["specroute.cost"]
    assert cost.value == pytest.approx(0.0006)


async def refusing(exchange: Exchange) -> None:
    await exchange.json_answer({"error": {"message": f"bad: {SECRET}"}}, 429)


async def test_an_error_is_named_and_not_quoted() -> None:
    """Its type on both spans and on the duration; what the provider said is nowhere."""
    async with watched(refusing) as (_, client, seen):
        with pytest.raises(openai.RateLimitError):
            await ask(client)
    assert [s.status.status_code for s in seen.spans] == [StatusCode.ERROR] * 2
    assert seen.calls[0].attributes["error.type"] == "429"  # type: ignore[index]
    assert seen.request.attributes["error.type"] == "status 429"  # type: ignore[index]
    (duration,) = seen.metrics()["gen_ai.client.operation.duration"]
    assert duration.attributes["error.type"] == "status 429"
    assert SECRET not in json.dumps([s.to_json() for s in seen.spans])


async def test_a_cancelled_request_is_no_error() -> None:
    """Its spans end, and say so."""
    async with watched(endless) as (server, client, seen):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await server.seen[0].gone.wait()
    assert seen.request.attributes["specroute.outcome"] == "cancelled"  # type: ignore[index]
    assert len(seen.calls) == 1
    assert {s.status.status_code for s in seen.spans} == {StatusCode.UNSET}


@pytest.mark.parametrize("when", ["on_start", "on_end"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_span_processor_that_fails_breaks_no_answer(
    stream: bool, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the app's own processor raises is logged."""

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("the processor's own fault")

    broken = SpanProcessor()
    setattr(broken, when, fails)
    traces = TracerProvider()
    traces.add_span_processor(broken)
    async with Loopback(answer) as server:
        found = parse(config(server.url), environ=KEYS)
        seen = OpenTelemetry(
            TelemetryConfig(), found.providers.get, tracer=traces.get_tracer("broken")
        )
        async with AsyncSpecRoute(config=config(server.url), max_retries=0) as client:
            client._seam.connections.answer_with(
                lambda up, store: Router(found, http_client=up, store=store, telemetry=seen),
                MemoryStore(),
            )
            await ask(client, stream=stream)
    assert "the processor's own fault" in caplog.text


async def test_requests_at_the_same_time_have_spans_of_their_own() -> None:
    """Each call is below its own request; the app's current span is the parent of all."""
    async with watched() as (_, client, seen):
        with seen.tracer.start_as_current_span("the app"):
            await asyncio.gather(*(ask(client) for _ in range(10)))
    (app,) = [s for s in seen.spans if s.name == "the app"]
    requests = [s for s in seen.spans if s.name.startswith("specroute ")]
    assert {s.parent.span_id for s in requests if s.parent} == {app.context.span_id}
    parents = [s.parent.span_id for s in seen.calls if s.parent]
    assert sorted(parents) == sorted(s.context.span_id for s in requests)


async def test_speculation_is_seen() -> None:
    """Acceptance, rounds, K and what was saved; each round is a call with its purpose."""
    world = World()
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server) as client:
            seen, found = Seen(), client.router.config

            def make(up: Any, store: Any) -> Router:
                router = Router(
                    found,
                    http_client=up,
                    store=store,
                    telemetry=seen.telemetry(found.providers.get),
                )
                drafter = client.drafter  # type: ignore[attr-defined]
                router.speculation = Speculator(
                    found, router.http, router.supervisor, drafters={"table": drafter}
                )
                return router

            client._seam.connections.answer_with(make, MemoryStore())
            await client.completions.create(model="m", prompt="a b c", max_tokens=40, temperature=0)
    shown = dict(seen.request.attributes or {})
    assert shown["specroute.method"] == "score"
    rounds, drafted = shown["specroute.rounds"], shown["specroute.drafted"]
    assert isinstance(rounds, int) and isinstance(drafted, int) and rounds > 1
    assert shown["specroute.k"] == pytest.approx(drafted / rounds)
    assert 0 < float(str(shown["specroute.acceptance_rate"])) <= 1
    purposes = [s.attributes["specroute.purpose"] for s in seen.calls]  # type: ignore[index]
    assert purposes.count("score") == rounds
    metrics = seen.metrics()
    assert metrics["specroute.rounds"][0].value == rounds
    assert metrics["specroute.tokens.drafted"][0].value == drafted
    assert metrics["specroute.k"][0].count == metrics["specroute.acceptance_rate"][0].count == 1


async def test_each_can_be_switched_off() -> None:
    """Traces, metrics, both."""
    for traces in (True, False):
        for metrics in (True, False):
            async with watched(traces=traces, metrics=metrics) as (_, client, seen):
                await ask(client)
            assert (bool(seen.spans), bool(seen.metrics())) == (traces, metrics)


def test_without_the_api_there_is_only_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra isn't installed, or nothing is wanted of it."""
    found = parse({"version": 1})
    assert isinstance(make_telemetry(found, found.providers.get), OpenTelemetry)
    off = parse({"version": 1, "telemetry": {"traces": False, "metrics": False}})
    assert isinstance(make_telemetry(off, off.providers.get), LogOnly)
    monkeypatch.setattr("specroute.telemetry.make.find_spec", lambda name: None)
    assert isinstance(make_telemetry(found, found.providers.get), LogOnly)


async def test_without_an_sdk_nothing_is_recorded_or_built() -> None:
    """No span records, and no report is written for telemetry's sake."""
    async with Loopback(answer) as server:
        found = parse(config(server.url), environ=KEYS)
        router = Router(found)
        handles: list[Any] = []
        real = router._announce

        def announce(handle: Any, on_report: Any) -> None:
            real(handle, on_report)
            handles.append(handle)

        router._announce = announce  # type: ignore[method-assign]
        async with AsyncSpecRoute(config=config(server.url)) as client:
            client._seam.connections.answer_with(lambda up, store: router, MemoryStore())
            await ask(client, stream=True)
        (handle,) = handles
        assert handle.done
        assert callable(handle._final)  # A report that somebody looked at would be one by now.
        await router.aclose()


@pytest.mark.parametrize(("level", "number"), [("debug", logging.DEBUG), ("info", logging.INFO)])
async def test_a_line_for_each_request(
    level: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its figures as fields; no texts."""
    caplog.set_level(logging.DEBUG, logger="specroute.requests")
    async with watched(log=level) as (_, client, _):
        await ask(client)
    (line,) = [r for r in caplog.records if r.name == "specroute.requests"]
    assert line.levelno == number
    assert "smart by lab:lab-model, ok in " in line.getMessage()
    fields = line.specroute  # type: ignore[attr-defined]
    assert (fields["target"], fields["outcome"], fields["attempts"]) == ("lab:lab-model", "ok", 1)
    assert fields["cost_usd"] == pytest.approx(0.0003)
    assert SECRET not in str(line.__dict__)


async def test_the_line_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    """``log = "off"``."""
    caplog.set_level(logging.DEBUG, logger="specroute.requests")
    async with watched(log="off") as (_, client, _):
        await ask(client)
    assert [r for r in caplog.records if r.name == "specroute.requests"] == []


def test_importing_loads_no_opentelemetry() -> None:
    """It is loaded with the first client."""
    probe = (
        "import sys, specroute, specroute.config, specroute.types\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "[]"

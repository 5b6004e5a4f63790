"""What a monitor sees of the proxy, in Prometheus' text format.

Knows reports and counts; nothing of HTTP. A label's values are few: a model is one of the config's
names or ``other``, so that callers can't fill the memory with names of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specroute.types import Report

_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one proxy, in a registry of their own."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"specroute_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(
                f"specroute_{name}", text, labels, registry=self.registry, buckets=_SECONDS
            )

        self._requests = counter(
            "requests", "Chat and completions calls that have ended.", "model", "method",
            "exactness", "outcome",
        )  # fmt: skip
        self._first = histogram(
            "time_to_first_token_seconds", "Request to first committed text.", "model", "method"
        )
        self._whole = histogram("duration_seconds", "Request to end.", "model", "method")
        self._tokens = counter(
            "tokens", "Tokens billed, of every call a request made.", "model", "kind"
        )
        self._cost = counter("cost_usd", "Dollars, where the price is known.", "model")
        self._rounds = counter("rounds", "Verification rounds.", "model")
        self._drafted = counter("drafted_tokens", "Tokens drafted.", "model")
        self._accepted = counter("accepted_tokens", "Drafted tokens accepted.", "model")
        self._attempts = counter(
            "attempts", "Calls to providers, by what they were for.", "purpose", "outcome"
        )
        self.refused = counter("refused", "Requests turned away by the proxy itself.", "reason")
        self.in_flight = Gauge("specroute_in_flight", "Requests under way.", registry=self.registry)
        self._up: Gauge | None = None
        self._shared: Gauge | None = None

    def observe(self, report: Report) -> None:
        """Enter one finished call."""
        model = report.model if report.model in self._models else "other"
        method = report.method
        outcome = "ok" if report.complete else "error"
        self._requests.labels(model, method, report.exactness, outcome).inc()
        if report.ttft_s is not None:
            self._first.labels(model, method).observe(report.ttft_s)
        if report.total_s is not None:
            self._whole.labels(model, method).observe(report.total_s)
        for kind, count in (
            ("prompt", report.billed_prompt_tokens),
            ("cached", report.billed_cached_tokens),
            ("completion", report.billed_completion_tokens),
        ):
            if count:
                self._tokens.labels(model, kind).inc(count)
        if report.cost_usd:
            self._cost.labels(model).inc(report.cost_usd)
        self._rounds.labels(model).inc(report.rounds)
        self._drafted.labels(model).inc(report.drafted)
        self._accepted.labels(model).inc(report.accepted)
        for attempt in report.attempts:
            self._attempts.labels(attempt.purpose, attempt.outcome).inc()

    def sharing(self, up: bool, counts: Mapping[str, int]) -> None:
        """How a worker stands with those that it shares measurements with."""
        if self._up is None or self._shared is None:
            self._up = Gauge(
                "specroute_measurements_shared",
                "1: measurements are shared with other workers; 0: their store is away.",
                registry=self.registry,
            )
            self._shared = Gauge(
                "specroute_shared_measurements",
                "Messages told and heard, and observations, since the start.",
                ["what"],
                registry=self.registry,
            )
        self._up.set(up)
        for what, count in counts.items():
            self._shared.labels(what).set(count)

    def text(self) -> bytes:
        """The page that a monitor reads."""
        return generate_latest(self.registry)

"""Whether there is any telemetry: OpenTelemetry's API is used where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Protocol

from specroute.config import Config, ProviderConfig, TelemetryConfig
from specroute.http.gate import Gate
from specroute.reporting import ReportHandle
from specroute.telemetry.log import log_request, wanted

ProviderOf = Callable[[str], ProviderConfig | None]
"""The config of the provider of that name."""


class Telemetry(Protocol):
    """Told of every request, and asked for the gate that sees every call."""

    @property
    def gates(self) -> Sequence[Gate]: ...

    def request(
        self, handle: ReportHandle, *, chat: bool, asked: str, streamed: bool
    ) -> AbstractContextManager[None]:
        """Around the work for one request; ``handle``'s report ends it."""
        ...


class LogOnly:
    """No OpenTelemetry: a log line, where it is wanted."""

    gates: Sequence[Gate] = ()

    def __init__(self, config: TelemetryConfig) -> None:
        self._level = config.log

    def request(
        self, handle: ReportHandle, *, chat: bool, asked: str, streamed: bool
    ) -> AbstractContextManager[None]:
        if wanted(self._level):
            handle.on_finish(lambda report: log_request(report, self._level))
        return nullcontext()


def make_telemetry(config: Config, provider_of: ProviderOf) -> Telemetry:
    """By ``[telemetry]``, and by what is installed."""
    chosen = config.telemetry
    if not (chosen.traces or chosen.metrics) or find_spec("opentelemetry") is None:
        return LogOnly(chosen)
    try:
        from specroute.telemetry.otel import OpenTelemetry
    except ImportError:  # A namespace package of that name without the API.
        return LogOnly(chosen)
    return OpenTelemetry(chosen, provider_of)

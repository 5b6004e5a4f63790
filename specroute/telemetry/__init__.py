"""What an operator sees: OpenTelemetry spans and metrics, and a log line for each request.

``names`` holds every name, ``otel`` the only code that loads OpenTelemetry's API, ``log`` the line.
Texts are never part of any of them.
"""

from specroute.telemetry.log import log_request
from specroute.telemetry.make import Telemetry, make_telemetry

__all__ = ["Telemetry", "log_request", "make_telemetry"]

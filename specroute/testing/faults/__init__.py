"""What servers, and whatever stands before them, really do to a request.

Each function gives a fault to put into a script; its arguments are tokens (pieces of content, as
the toy model sends them) and seconds. Deliberately not here: which request meets it.
"""

from collections.abc import Sequence

from specroute.testing.exchange import Fault
from specroute.testing.faults.midway import (
    cut,
    edited,
    ends_early,
    error_event,
    keep_alives,
    lies,
    malformed_event,
    no_done,
    slow_tokens,
    stall,
)
from specroute.testing.faults.refusals import (
    body,
    delayed,
    empty,
    error_in_200,
    hang_up,
    html,
    insufficient_quota,
    invalid_json,
    rate_limited,
    reset,
    server_error,
    silence,
    slow_headers,
    status,
    unauthorized,
    whole_answer,
    wrong_content_type,
    wrong_shape,
)

EVERY: Sequence[Fault] = (
    silence(),
    reset(),
    hang_up(),
    status(500),
    status(503),
    rate_limited(),
    rate_limited(retry_after=1),
    rate_limited(retry_after_ms=20),
    unauthorized(),
    insufficient_quota(),
    html(),
    empty(),
    invalid_json(),
    wrong_shape(),
    error_in_200(),
    cut(0),
    cut(3),
    ends_early(0),
    ends_early(3),
    stall(0),
    stall(3),
    keep_alives(0),
    keep_alives(3),
    malformed_event(0),
    malformed_event(3),
    error_event(0),
    error_event(3),
)
"""One of each that spoils a plain answer: what a table of faults starts from."""

__all__ = [
    "EVERY",
    "body",
    "cut",
    "delayed",
    "edited",
    "empty",
    "ends_early",
    "error_event",
    "error_in_200",
    "hang_up",
    "html",
    "insufficient_quota",
    "invalid_json",
    "keep_alives",
    "lies",
    "malformed_event",
    "no_done",
    "rate_limited",
    "reset",
    "server_error",
    "silence",
    "slow_headers",
    "slow_tokens",
    "stall",
    "status",
    "unauthorized",
    "whole_answer",
    "wrong_content_type",
    "wrong_shape",
]

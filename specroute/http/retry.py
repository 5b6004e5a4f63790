"""When another attempt may be made and after how long; the rules are openai-python's.

Pure: knows statuses, headers and the clock time passed in; sends nothing and sleeps never.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from random import Random

from specroute.errors import ConnectFailed, DeadlineExceeded, SpecRouteError, StreamTruncated

INITIAL_DELAY_S = 0.5
MAX_DELAY_S = 8.0
MAX_RETRY_AFTER_S = 120.0
"""A server that asks for a longer wait than this is not asked again."""


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that ``Retry-After-Ms`` or ``Retry-After`` (seconds or a date) asks for.

    ``now`` is the wall-clock time in seconds since the epoch. ``None``: nothing readable.
    """
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            delay = float(value)
        except ValueError:
            continue
        if delay == math.inf and "inf" not in value.lower():
            return MAX_RETRY_AFTER_S + 1  # overflowed: a very long wait, not a malformed one
        return delay / divisor
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        date = email.utils.parsedate_tz(value)
        return None if date is None else float(email.utils.mktime_tz(date) - now)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def status_retryable(status: int, headers: Mapping[str, str], now: float) -> bool:
    """Whether an error status may be tried again: the server's word first, then the status."""
    wait = retry_after(headers, now)
    if wait is not None and math.isfinite(wait) and wait > MAX_RETRY_AFTER_S:
        return False
    word = headers.get("x-should-retry")
    if word in ("true", "false"):
        return word == "true"
    return status in (408, 409, 429) or status >= 500


def error_retryable(error: SpecRouteError) -> bool:
    """Whether a failed exchange may be tried again: no connection, cut, or too slow to connect.

    The other deadlines span attempts: once one has passed, no time is left for another.
    """
    if isinstance(error, DeadlineExceeded):
        return error.which == "connect"
    return isinstance(error, ConnectFailed | StreamTruncated)


def delay(taken: int, headers: Mapping[str, str] | None, now: float, rng: Random) -> float:
    """Seconds to wait before attempt ``taken + 1`` is repeated (``taken`` = retries so far)."""
    if headers is not None:
        wait = retry_after(headers, now)
        if wait is not None and 0 < wait <= MAX_RETRY_AFTER_S:
            return wait
    backoff = min(INITIAL_DELAY_S * 2.0 ** min(taken, 30), MAX_DELAY_S)
    return float(backoff * (1 - 0.25 * rng.random()))

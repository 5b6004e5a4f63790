"""How long a provider asks to be left alone: its headers read, nothing else.

Pure. ``Retry-After`` (seconds, a date), ``retry-after-ms``; OpenAI's ``x-ratelimit-remaining-*``
and ``x-ratelimit-reset-*`` ("6m0s", "17ms"; platform.openai.com/docs/guides/rate-limits; Groq's
and Azure's are alike, some as plain seconds); Anthropic's ``anthropic-ratelimit-*-remaining`` and
``-reset`` (RFC 3339; docs.claude.com/en/api/rate-limits); epoch seconds or milliseconds as
OpenRouter has them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from specroute.http.retry import retry_after

_UNASKED_S = (1.0, 30.0)
"""After a 429 that says nothing: the first time, and at most (doubled for each one in a row)."""
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s|d)")
_UNITS = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
_NAMES = (
    *((f"x-ratelimit-remaining-{k}", f"x-ratelimit-reset-{k}") for k in ("requests", "tokens")),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    *(
        (f"anthropic-ratelimit-{k}-remaining", f"anthropic-ratelimit-{k}-reset")
        for k in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)


@dataclass(frozen=True, slots=True)
class Cooling:
    """Be left alone for ``seconds``; ``said``: by which word. ``asked``: the provider refused a
    call and named the time, so that calling earlier is in vain; else it is only a good idea."""

    seconds: float
    said: str
    asked: bool


def cooling(
    status: int, headers: Mapping[str, str], now: float, refusals: int = 1
) -> Cooling | None:
    """What an answer's status and headers ask for; ``None``: nothing.

    ``now``: seconds since the epoch. ``refusals``: how many 429s in a row this is the last of.
    """
    if status >= 400:
        wait = retry_after(headers, now)
        if wait is not None and wait > 0 and math.isfinite(wait):
            return Cooling(wait, "retry-after", asked=True)
    spent = _spent(headers, now)
    if spent is not None:
        return spent
    if status == 429:
        first, most = _UNASKED_S
        return Cooling(min(first * 2.0 ** min(refusals - 1, 10), most), "429", asked=False)
    return None


def _spent(headers: Mapping[str, str], now: float) -> Cooling | None:
    """The longest reset among the limits of which nothing remains."""
    found: Cooling | None = None
    for remaining, reset in _NAMES:
        if headers.get(remaining) == "0":
            seconds = until(headers.get(reset), now)
            if seconds is not None and seconds > (found.seconds if found else 0):
                found = Cooling(seconds, reset, asked=False)
    return found


def until(value: str | None, now: float) -> float | None:
    """Seconds until a reset: "1m2.5s", "17ms", "12" (seconds), epoch (milli)seconds, RFC 3339.

    Readable forms only; ``None`` for anything else. May be negative: then it is past.
    """
    if not value:
        return None
    value = value.strip()
    parts = _PARTS.findall(value)
    if parts and "".join(number + unit for number, unit in parts) == value:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        number = float(value)
    except ValueError:
        pass
    else:
        if not math.isfinite(number):
            return None
        if number > 1e11:  # Milliseconds since the epoch (in seconds, that is the year 5138).
            return number / 1000 - now
        return number - now if number > 1e9 else number
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() - now

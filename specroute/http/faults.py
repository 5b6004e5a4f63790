"""What a failed call says of its provider: the kinds of fault that another target may make good.

Pure. Reads statuses, bodies and our own errors; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from specroute.errors import (
    BadAnswer,
    BudgetExceeded,
    ConnectFailed,
    DeadlineExceeded,
    ErrorInBody,
    LimitReached,
    StatusError,
    StreamTruncated,
)


class Fault(StrEnum):
    """The words of ``fallback_on``, and ``REFUSED``, which always goes to another target."""

    RATE = "429"
    """Too many requests, by the provider's word or by a limit of the config."""
    SERVER = "5xx"
    """The server failed: 5xx, 408, 409, 425, an error inside a 200, an answer that is none."""
    CONNECT = "connect"
    """No connection, or it broke before any answer."""
    FIRST_TOKEN = "first_token"
    """No first token in time."""
    STALL = "stall"
    """No further content in time."""
    TRUNCATED = "truncated"
    """The answer stopped before its end."""
    REFUSED = "refused"
    """This provider won't serve this caller at all: a key, a permission, a balance, a model."""


_BUSY = (408, 409, 425)
_NOT_SERVED = (401, 402, 403, 404)
_QUOTA = "insufficient_quota"


def of_status(status: int, body: bytes = b"") -> Fault | None:
    """The fault of an error status; ``None``: the request's own, any provider would say so."""
    if status == 429:
        return Fault.REFUSED if out_of_quota(body) else Fault.RATE
    if status in _NOT_SERVED:
        return Fault.REFUSED
    if status >= 500 or status in _BUSY or 300 <= status < 400:  # A redirect to nowhere.
        return Fault.SERVER
    return None


def out_of_quota(body: bytes) -> bool:
    """Whether a 429 says that the account has no money left (openai's ``insufficient_quota``):
    no wait brings that back."""
    if _QUOTA.encode() not in body:
        return False
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return _is_quota(data.get("error") if isinstance(data, dict) else None)


def _is_quota(error: Any) -> bool:
    return isinstance(error, Mapping) and _QUOTA in (error.get("code"), error.get("type"))


def of_error(error: BaseException) -> Fault | None:
    """The fault that an exception stands for; ``None``: none of a provider's, or the time is up."""
    match error:
        case StatusError():
            return of_status(error.status, error.body)
        case ConnectFailed():
            return Fault.CONNECT
        case DeadlineExceeded(which="connect"):
            return Fault.CONNECT
        case DeadlineExceeded(which="first_token"):
            return Fault.FIRST_TOKEN
        case DeadlineExceeded(which="stall"):
            return Fault.STALL
        case StreamTruncated():
            return Fault.TRUNCATED
        case ErrorInBody():
            return _of_body(error.body)
        case BadAnswer():
            return Fault.SERVER
        case BudgetExceeded():
            return None
        case LimitReached():
            return Fault.RATE
    return None


def _of_body(error: Any) -> Fault | None:
    """Gateways answer 200 and put the status, or openai's words for it, into the error object."""
    if not isinstance(error, Mapping):
        return Fault.SERVER
    if _is_quota(error):
        return Fault.REFUSED
    for name in ("status", "code", "status_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
            return of_status(value)
    words = f"{error.get('type')} {error.get('code')}".lower()
    if "rate_limit" in words:
        return Fault.RATE
    if "authentication" in words or "permission" in words or "invalid_api_key" in words:
        return Fault.REFUSED
    if "invalid_request" in words or "context_length" in words or "content_filter" in words:
        return None
    return Fault.SERVER


def repeatable(fault: Fault) -> bool:
    """Whether the same target may be asked once more: not after a refusal, nor after a silence,
    which has used the time up."""
    return fault not in (Fault.REFUSED, Fault.FIRST_TOKEN, Fault.STALL)

"""Each public error once more, as the openai class it corresponds to.

Knows openai's exceptions and ours; the only place where the two meet.
``except openai.RateLimitError`` and ``except specroute.StatusError`` both catch a 429. On these
classes ``body`` is openai's: the decoded ``error`` object; the bytes are in ``response.content``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import ceil, inf
from typing import Any

import httpx2
import openai

from specroute import errors
from specroute.http import wire


class APIStatusError(errors.StatusError, openai.APIStatusError):
    """An error status of the provider's, worded as openai words it."""

    body: Any

    def __init__(
        self, message: str, *, response: httpx2.Response, body: object | None, provider: str
    ) -> None:
        openai.APIStatusError.__init__(self, message, response=response, body=body)
        self.provider = provider
        self.status = response.status_code
        self.headers = response.headers


class BadRequestError(APIStatusError, openai.BadRequestError):
    """400."""


class AuthenticationError(APIStatusError, openai.AuthenticationError):
    """401."""


class PermissionDeniedError(APIStatusError, openai.PermissionDeniedError):
    """403."""


class NotFoundError(APIStatusError, openai.NotFoundError):
    """404; a note says what to check about ``base_url``."""


class ConflictError(APIStatusError, openai.ConflictError):
    """409."""


class UnprocessableEntityError(APIStatusError, openai.UnprocessableEntityError):
    """422."""


class RateLimitError(APIStatusError, openai.RateLimitError):
    """429."""


class InternalServerError(APIStatusError, openai.InternalServerError):
    """500 and above."""


class RequestError(errors.RequestError, openai.BadRequestError):
    """The request can't be served as asked; nothing was sent."""

    def __init__(self, error: errors.RequestError, request: httpx2.Request) -> None:
        response, body = _own_answer(error, request)
        openai.APIStatusError.__init__(self, str(error), response=response, body=body)


class UnknownModel(errors.UnknownModel, openai.NotFoundError):
    """``model=`` names nothing configured; nothing was sent."""

    def __init__(self, error: errors.UnknownModel, request: httpx2.Request) -> None:
        response, body = _own_answer(error, request)
        openai.APIStatusError.__init__(self, str(error), response=response, body=body)


class CostTooHigh(errors.CostTooHigh, openai.BadRequestError):
    """A plain answer may cost more than ``max_cost_usd``; nothing was sent."""

    def __init__(self, error: errors.CostTooHigh, request: httpx2.Request) -> None:
        response, body = _own_answer(error, request)
        openai.APIStatusError.__init__(self, str(error), response=response, body=body)


class LimitReached(errors.LimitReached, openai.RateLimitError):
    """A limit of the config is reached; the call did not leave."""

    code = errors.LimitReached.code

    def __init__(self, error: errors.LimitReached, request: httpx2.Request) -> None:
        response, body = _own_429(error, request)
        openai.APIStatusError.__init__(self, str(error), response=response, body=body)
        self.provider, self.limit, self.wait_s = error.provider, error.limit, error.wait_s


class BudgetExceeded(errors.BudgetExceeded, LimitReached):
    """A budget of the config is used up; the call did not leave."""

    code = errors.BudgetExceeded.code


class StoreFailed(errors.StoreFailed, openai.APIError):
    """The store of limits and budgets, or a batch's journal, can't be used."""

    def __init__(self, error: errors.StoreFailed, request: httpx2.Request) -> None:
        openai.APIError.__init__(self, str(error), request, body=None)


class ConfigError(errors.ConfigError, openai.OpenAIError):
    """A config file, or the arguments in its place, are wrong."""


class ConnectFailed(errors.ConnectFailed, openai.APIConnectionError):
    """No connection, or it broke before any answer."""

    def __init__(self, error: errors.ConnectFailed, request: httpx2.Request) -> None:
        openai.APIConnectionError.__init__(self, message=str(error), request=request)
        self.provider = error.provider


class StreamTruncated(errors.StreamTruncated, openai.APIConnectionError):
    """The answer stopped before it was complete."""

    def __init__(self, error: errors.StreamTruncated, request: httpx2.Request) -> None:
        openai.APIConnectionError.__init__(self, message=str(error), request=request)
        self.provider = error.provider


class AllCooling(errors.AllCooling, openai.RateLimitError):
    """Every target has asked to be left alone; nothing was sent. The response is our own 429, its
    ``Retry-After`` the wait."""

    def __init__(self, error: errors.AllCooling, request: httpx2.Request) -> None:
        body = {"message": str(error), "type": "rate_limit_error", "param": None, "code": None}
        response = httpx2.Response(
            429,
            headers={
                "retry-after": str(math.ceil(error.wait_s)),
                "retry-after-ms": str(math.ceil(error.wait_s * 1000)),
                "x-should-retry": "false",
            },
            json={"error": body},
            request=request,
        )
        openai.APIStatusError.__init__(self, str(error), response=response, body=body)
        self.provider = error.provider
        self.wait_s = error.wait_s


class DeadlineExceeded(errors.DeadlineExceeded, openai.APITimeoutError):
    """A deadline passed."""

    def __init__(self, error: errors.DeadlineExceeded, request: httpx2.Request) -> None:
        openai.APIConnectionError.__init__(self, message=str(error), request=request)
        self.provider = error.provider
        self.which = error.which
        self.seconds = error.seconds


class ErrorInBody(errors.ErrorInBody, openai.APIError):
    """An error came inside a 200 answer or a stream; ``body`` is the error object."""

    def __init__(self, error: errors.ErrorInBody, request: httpx2.Request) -> None:
        openai.APIError.__init__(self, str(error), request, body=error.body)
        self.provider = error.provider


class BadAnswer(errors.BadAnswer, openai.APIError):
    """The answer is not what the API promises."""

    def __init__(self, error: errors.BadAnswer, request: httpx2.Request) -> None:
        openai.APIError.__init__(self, str(error), request, body=None)
        self.provider = error.provider


class StreamAbandoned(errors.StreamAbandoned, openai.APIError):
    """The stream was held unread for too long and has been ended."""

    def __init__(self, error: errors.StreamAbandoned, request: httpx2.Request) -> None:
        openai.APIError.__init__(self, str(error), request, body=None)


_BY_STATUS: Mapping[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}

# The most specific first: UnknownModel is a RequestError, BudgetExceeded a LimitReached.
_TRANSLATIONS: tuple[tuple[type[errors.SpecRouteError], Any], ...] = (
    (errors.UnknownModel, UnknownModel),
    (errors.CostTooHigh, CostTooHigh),
    (errors.RequestError, RequestError),
    (errors.BudgetExceeded, BudgetExceeded),
    (errors.LimitReached, LimitReached),
    (errors.StoreFailed, StoreFailed),
    (errors.ConnectFailed, ConnectFailed),
    (errors.StreamTruncated, StreamTruncated),
    (errors.AllCooling, AllCooling),
    (errors.DeadlineExceeded, DeadlineExceeded),
    (errors.ErrorInBody, ErrorInBody),
    (errors.BadAnswer, BadAnswer),
    (errors.StreamAbandoned, StreamAbandoned),
)


def translate(
    error: errors.SpecRouteError,
    request: httpx2.Request,
    redact: Callable[[str], str] = str,
) -> Exception:
    """The public, openai-compatible form of an error; one that has it already stays as it is.

    ``redact`` takes keys out of the message and the body, which may quote the provider.
    """
    if isinstance(error, openai.OpenAIError):
        return error
    error.args = (redact(str(error)), *error.args[1:])
    if isinstance(error, errors.ErrorInBody):
        error.body = wire.change_texts(error.body, redact)
    public: Exception
    if isinstance(error, errors.StatusError):
        response = httpx2.Response(
            error.status, headers=dict(error.headers), content=error.body, request=request
        )
        public = status_error(
            redact(wire.status_message(error.status, error.body)),
            response=response,
            body=wire.change_texts(_json_or_text(response), redact),
            provider=error.provider,
        )
    elif isinstance(error, errors.ConfigError):
        public = ConfigError(error.problems, error.source)
    else:
        for kind, make in _TRANSLATIONS:
            if isinstance(error, kind):
                public = make(error, request)
                break
        else:
            return error
    for note in getattr(error, "__notes__", ()):
        public.add_note(note)
    return public


def status_error(
    message: str, *, response: httpx2.Response, body: object, provider: str
) -> APIStatusError:
    """The error for a status; arguments as openai's ``_make_status_error`` has them."""
    data = body.get("error", body) if isinstance(body, Mapping) else body
    status = response.status_code
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(message, response=response, body=data, provider=provider)


def _json_or_text(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return response.text.strip()


def _own_answer(
    error: errors.RequestError, request: httpx2.Request
) -> tuple[httpx2.Response, dict[str, Any]]:
    body = {
        "message": str(error),
        "type": "invalid_request_error",
        "param": error.param,
        "code": error.code,
    }
    response = httpx2.Response(
        error.status, headers={"x-should-retry": "false"}, json={"error": body}, request=request
    )
    return response, body


def _own_429(
    error: errors.LimitReached, request: httpx2.Request
) -> tuple[httpx2.Response, dict[str, Any]]:
    body = {
        "message": str(error),
        "type": "requests",
        "param": error.limit,
        "code": error.code,
    }
    headers = {"x-should-retry": "false"}
    if error.wait_s is not None and error.wait_s < inf:
        headers["retry-after"] = str(ceil(error.wait_s))
    return httpx2.Response(429, headers=headers, json={"error": body}, request=request), body

"""The error tree. Pure: it knows what went wrong, not who raised it or how it is shown.

::

    SpecRouteError
    ├── ConfigError               a config, profile or policy file is wrong (lists every problem)
    ├── RequestError              the caller's request can't be served as asked
    │   ├── UnknownModel          ``model=`` names nothing configured (lists what is)
    │   └── CostTooHigh           even a plain answer may cost more than ``max_cost_usd``
    ├── ProviderError             a provider did not do its part; has ``provider``
    │   ├── ConnectFailed         no connection: refused, DNS, TLS
    │   ├── DeadlineExceeded      connect, first_token, stall or total passed; has ``which``
    │   ├── StatusError           an HTTP error status; has ``status``, ``headers``, ``body``
    │   ├── ErrorInBody           ``{"error": …}`` inside a 200 or a stream; has ``body``
    │   ├── BadAnswer             not what the API promises: HTML, no JSON, wrong shape
    │   ├── StreamTruncated       the stream ended with neither finish_reason nor [DONE]
    │   ├── LimitReached          a call would have broken a limit of the config; it did not leave
    │   │   └── BudgetExceeded    … or a budget
    │   └── AllCooling            every target asked to be left alone; has ``wait_s``
    ├── StoreFailed               what limits, budgets, a batch are kept in can't be read or written
    ├── StreamAbandoned           the reader held a stream and did not read it for too long
    └── DraftError                a drafter failed; never reaches the caller, ends up in the report

Transport-level exceptions are translated into these once, in ``http``; ``openai_errors`` gives each
public one its openai counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class SpecRouteError(Exception):
    """The root. ``str()`` shows the value, what was expected and what to do; never a key."""


class ConfigError(SpecRouteError):
    """One or more problems in a config, profile or policy file; ``problems`` lists all of them."""

    def __init__(self, problems: str | Sequence[str], source: str | None = None) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        self.source = source
        head = f"{source}: " if source else ""
        if len(self.problems) == 1:
            text = head + self.problems[0]
        else:
            lines = "".join(f"\n  - {problem}" for problem in self.problems)
            text = f"{head}{len(self.problems)} problems{lines}"
        super().__init__(text)


class RequestError(SpecRouteError):
    """The request can't be served as asked; an HTTP 400 of our own. ``param`` names the field."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.param = param
        self.code = code
        super().__init__(message)


class UnknownModel(RequestError):
    """``model=`` names nothing configured; an HTTP 404 of our own."""

    status = 404


class CostTooHigh(RequestError):
    """A plain answer may cost more than ``max_cost_usd``, or what it costs is not known; an HTTP
    400 of our own. Nothing was sent."""


class ProviderError(SpecRouteError):
    """A provider did not do its part. ``provider`` is its name in the config."""

    def __init__(self, message: str, *, provider: str) -> None:
        self.provider = provider
        super().__init__(message)

    @property
    def outcome(self) -> str:
        """A short name for attempt lists."""
        return type(self).__name__


class ConnectFailed(ProviderError):
    """No connection could be made (refused, DNS, TLS), or it broke before any answer."""

    @property
    def outcome(self) -> str:
        return "connect"


class DeadlineExceeded(ProviderError):
    """One of the four deadlines passed. ``which``: ``connect | first_token | stall | total``."""

    def __init__(self, message: str, *, provider: str, which: str, seconds: float) -> None:
        self.which = which
        self.seconds = seconds
        super().__init__(message, provider=provider)

    @property
    def outcome(self) -> str:
        return self.which


class StatusError(ProviderError):
    """The provider answered with an error status; headers and body are the provider's own."""

    def __init__(
        self, message: str, *, provider: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        super().__init__(message, provider=provider)

    @property
    def outcome(self) -> str:
        return f"status {self.status}"


class ErrorInBody(ProviderError):
    """``{"error": …}`` came inside a 200 answer or a stream; ``body`` is the error object."""

    def __init__(self, message: str, *, provider: str, body: Any) -> None:
        self.body = body
        super().__init__(message, provider=provider)


class BadAnswer(ProviderError):
    """The answer is not what the API promises: HTML, invalid JSON, an impossible shape."""


class LimitReached(ProviderError):
    """A call would have broken a limit of the config, and waiting for room would have taken longer
    than the request has; it did not leave. An HTTP 429 of our own.

    ``limit``: the config's key, such as ``providers.lab.limits.rpm``. ``wait_s``: seconds until
    there is room, as far as that is known now.
    """

    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, provider: str, limit: str, wait_s: float | None = None
    ) -> None:
        self.limit = limit
        self.wait_s = wait_s
        super().__init__(message, provider=provider)

    @property
    def outcome(self) -> str:
        return "limit"


class BudgetExceeded(LimitReached):
    """A call could have cost more than a budget of the config has left; it did not leave."""

    code = "budget_exceeded"


class StreamTruncated(ProviderError):
    """A stream ended with neither ``finish_reason`` nor ``[DONE]``: cut, not complete."""

    @property
    def outcome(self) -> str:
        return "truncated"


class AllCooling(ProviderError):
    """Every target has asked to be left alone for longer than the request may take; nothing was
    sent. ``wait_s``: seconds until the first of them may be asked again."""

    def __init__(self, message: str, *, provider: str, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(message, provider=provider)

    @property
    def outcome(self) -> str:
        return "cooling"


class StoreFailed(SpecRouteError):
    """The store of limits and budgets can't be read or written, or a batch's journal can't be
    written, so no call may leave."""


class StreamAbandoned(SpecRouteError):
    """The caller held a stream without reading it for longer than the idle limit; it was ended."""


class DraftError(SpecRouteError):
    """A drafter could not load or failed while drafting. Recorded in the report, never raised."""

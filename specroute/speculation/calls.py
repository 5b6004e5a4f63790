"""The call that a router hands over to be speculated on. Protocols alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from specroute.config import (
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
)
from specroute.continuing import Standby
from specroute.errors import ProviderError
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.overheard import Overheard
from specroute.recorder import Trace
from specroute.reporting import ReportHandle
from specroute.request import Options
from specroute.types import Exactness, TargetRef


class ResolvedModel(Protocol):
    """What ``model=`` stands for."""

    @property
    def asked(self) -> str: ...
    @property
    def target(self) -> TargetRef: ...
    @property
    def provider(self) -> ProviderConfig: ...
    @property
    def model(self) -> ModelConfig | None: ...


class TextCall(Protocol):
    """A chat or completions call, as the router hands it over."""

    path: str
    body: dict[str, Any]
    options: Options
    policy: PolicyConfig | None
    deadline: Deadline
    handle: ReportHandle
    http: HttpClient
    standby: Standby | None
    substitute: tuple[Exactness, str] | None
    failed: ProviderError | None

    @property
    def announce(self) -> Callable[[ReportHandle], None]:
        """Told of a report that belongs to no request of the caller's (calibration)."""
        ...

    @property
    def trace(self) -> Trace | None:
        """This request's line, where requests are recorded."""
        ...

    overheard: Overheard | None
    """Set here: keeps the plain answer, to be read afterwards."""

    @property
    def drafted(self) -> Callable[[int, str], None] | None:
        """Told of each draft, where the caller wants to see it."""
        ...

    @property
    def resolved(self) -> ResolvedModel: ...

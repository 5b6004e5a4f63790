"""specroute: a drop-in ``openai.AsyncOpenAI`` that speculates across APIs and says what it did.

Only names live here, and they load when first used: importing specroute is quick and silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specroute.client import AsyncSpecRoute, SpecRoute
    from specroute.config import Config
    from specroute.errors import (
        AllCooling,
        BadAnswer,
        BudgetExceeded,
        ConfigError,
        ConnectFailed,
        CostTooHigh,
        DeadlineExceeded,
        ErrorInBody,
        LimitReached,
        ProviderError,
        RequestError,
        SpecRouteError,
        StatusError,
        StoreFailed,
        StreamAbandoned,
        StreamTruncated,
        UnknownModel,
    )
    from specroute.openai_seam.provisional_stream import ProvisionalStream
    from specroute.provisional import Commit, Done, Provisional, Rollback, SpeculationEvent
    from specroute.reporting import Reports, report, reports
    from specroute.types import Report

__version__ = "0.1.0"

_HOMES = {
    "AsyncSpecRoute": "client",
    "SpecRoute": "client",
    "Config": "config",
    "Commit": "provisional",
    "Done": "provisional",
    "Provisional": "provisional",
    "ProvisionalStream": "openai_seam.provisional_stream",
    "Rollback": "provisional",
    "SpeculationEvent": "provisional",
    "Report": "types",
    "Reports": "reporting",
    "report": "reporting",
    "reports": "reporting",
    "AllCooling": "errors",
    "BadAnswer": "errors",
    "BudgetExceeded": "errors",
    "ConfigError": "errors",
    "ConnectFailed": "errors",
    "CostTooHigh": "errors",
    "DeadlineExceeded": "errors",
    "ErrorInBody": "errors",
    "LimitReached": "errors",
    "ProviderError": "errors",
    "RequestError": "errors",
    "SpecRouteError": "errors",
    "StatusError": "errors",
    "StoreFailed": "errors",
    "StreamAbandoned": "errors",
    "StreamTruncated": "errors",
    "UnknownModel": "errors",
}

__all__ = [
    "AllCooling",
    "AsyncSpecRoute",
    "BadAnswer",
    "BudgetExceeded",
    "Commit",
    "Config",
    "ConfigError",
    "ConnectFailed",
    "CostTooHigh",
    "DeadlineExceeded",
    "Done",
    "ErrorInBody",
    "LimitReached",
    "ProviderError",
    "Provisional",
    "ProvisionalStream",
    "Report",
    "Reports",
    "RequestError",
    "Rollback",
    "SpecRoute",
    "SpecRouteError",
    "SpeculationEvent",
    "StatusError",
    "StoreFailed",
    "StreamAbandoned",
    "StreamTruncated",
    "UnknownModel",
    "report",
    "reports",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'specroute' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"specroute.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

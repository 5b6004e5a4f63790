"""The forecasters, by method. A method that has none is never chosen by an adaptive policy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specroute.policy.forecast import Forecaster, plain
from specroute.policy.forecast_cascade import cascade
from specroute.policy.forecast_flight import rounds
from specroute.policy.forecast_opinion import judge, race
from specroute.policy.forecast_predict import predict
from specroute.policy.forecast_prefix import prefix
from specroute.types import Method

FORECASTS: Mapping[Method, Forecaster] = MappingProxyType(
    {
        Method.PLAIN: plain,
        Method.SCORE: rounds,
        Method.PREFIX: prefix,
        Method.PREDICT: predict,
        Method.CASCADE: cascade,
        Method.JUDGE: judge,
        Method.RACE: race,
    }
)
"""Every method that an adaptive policy may choose."""

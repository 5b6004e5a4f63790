"""Methods: ways to use a target, one file each, all behind the protocol in ``base``."""

from __future__ import annotations

from collections.abc import Mapping

from specroute.method.base import MethodRun
from specroute.method.cascade import run as cascade
from specroute.method.hedge import run as hedge
from specroute.method.judge import run as judge
from specroute.method.plain import run as plain
from specroute.method.predict import run as predict
from specroute.method.prefix import run as prefix
from specroute.method.race import run as race
from specroute.method.score import run as score
from specroute.types import Method

METHODS: Mapping[Method, MethodRun] = {
    Method.PLAIN: plain,
    Method.SCORE: score,
    Method.PREFIX: prefix,
    Method.PREDICT: predict,
    Method.CASCADE: cascade,
    Method.JUDGE: judge,
    Method.RACE: race,
    Method.HEDGE: hedge,
}

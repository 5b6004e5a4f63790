"""From a config's policy table to a policy."""

from __future__ import annotations

from typing import Any

from specroute.config import PolicyConfig
from specroute.policy.adaptive import Adaptive
from specroute.policy.fixed import Fixed
from specroute.presets import load_preset
from specroute.types import Method


def make_policy(config: PolicyConfig) -> tuple[Fixed | Adaptive, str]:
    """(the policy, the loosest exactness label it allows). Raises ``ConfigError`` for an unknown
    preset; its parameters were checked when the config was read."""
    preset = load_preset(config.preset)
    params: dict[str, Any] = {**preset.params, **config.params}
    floor = str(params.pop("exactness"))
    if preset.policy == "fixed":
        params["method"] = Method(params["method"])
        return Fixed(**params), floor
    return Adaptive(**params), floor

"""From a config's policy table to a policy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from specroute.acceptance import Lossy, Ratio, Typical
from specroute.config import PolicyConfig
from specroute.errors import ConfigError
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Policy
from specroute.policy.fixed import Fixed
from specroute.policy.objective import Objective
from specroute.presets import load_preset
from specroute.types import Exactness, Method


def make_policy(config: PolicyConfig) -> tuple[Policy, Exactness]:
    """(the policy, the loosest exactness label it allows).

    Raises ``ConfigError`` for an unknown preset, and for a lossy rule without the label it earns;
    the parameters themselves were checked when the config was read.
    """
    preset = load_preset(config.preset)
    params: dict[str, Any] = {**preset.params, **config.params}
    floor = Exactness(params.pop("exactness"))
    loose = params.pop("match") == "loose"
    rule = params.pop("acceptance")
    tau, epsilon, delta = (params.pop(name) for name in ("tau", "epsilon", "delta"))
    lossy: Lossy | None = None
    if rule != "exact":
        lossy = Ratio(tau) if rule == "ratio" else Typical(epsilon, delta)
    if lossy is not None and floor is not Exactness.HEURISTIC:
        raise ConfigError(
            f"policy {config.preset!r}: acceptance = {rule!r} is lossy; allow its label with "
            "exactness = 'heuristic', or use acceptance = 'exact'"
        )
    if loose and floor is not Exactness.HEURISTIC:
        raise ConfigError(
            f"policy {config.preset!r}: match = 'loose' follows words that only resemble the "
            "answer's; allow its label with exactness = 'heuristic', or use match = 'exact'"
        )
    if preset.policy == "fixed":
        params["method"] = Method(params["method"])
        return Fixed(**params, lossy=lossy, loose=loose), floor
    objective = Objective(**{f.name: params.pop(f.name) for f in fields(Objective)})
    return Adaptive(objective, **params, lossy=lossy, loose=loose), floor

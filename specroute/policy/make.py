"""From a config's policy table to a policy."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

from specroute.acceptance import Lossy, MeanLogprob, Ratio, Typical
from specroute.config import PolicyConfig
from specroute.errors import ConfigError
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Policy
from specroute.policy.fixed import Fixed
from specroute.policy.objective import Objective
from specroute.presets import PLUGIN, load_preset
from specroute.types import Exactness, Method


def make_policy(config: PolicyConfig) -> tuple[Policy, Exactness]:
    """(the policy, the loosest exactness label it allows).

    Raises ``ConfigError`` for an unknown preset, for a ``module:Class`` that can't be had, and for
    a lossy rule without the label it earns; the other parameters were checked when the config was
    read.
    """
    preset = load_preset(config.preset)
    params: dict[str, Any] = {**preset.params, **config.params}
    floor = Exactness(params.pop("exactness"))
    if preset.own:
        return _own(preset.policy, params), floor
    loose = params.pop("match") == "loose"
    rule = params.pop("acceptance")
    tau, epsilon, delta = (params.pop(name) for name in ("tau", "epsilon", "delta"))
    threshold, agreement = params.pop("mean_logprob"), params.pop("agreement") or None
    lossy: Lossy | None = None
    if rule == "ratio":
        lossy = Ratio(tau, agreement)
    elif rule == "typical":
        lossy = Typical(epsilon, delta)
    elif rule == "mean_logprob":
        lossy = MeanLogprob(threshold, agreement)
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


def _own(name: str, params: dict[str, Any]) -> Policy:
    """A policy of the user's own: ``module:Class``, called with its parameters."""
    module, _, made = name.partition(PLUGIN)
    try:
        policy = getattr(import_module(module), made)(**params)
    except Exception as error:  # It is the user's code: whatever it raises is a wrong config.
        raise ConfigError(
            f"policy {name!r} could not be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy {name!r} is no policy: it needs eager, lossy, plan() and next_k(), as "
            "specroute.policy.base.Policy has them"
        )
    return policy

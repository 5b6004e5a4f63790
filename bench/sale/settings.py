"""The settings that the sale day is run with: one row each. Knows policies and drafts by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOCAL, FLEET, NGRAM = "local", "fleet", "ngram"
"""Whose tokens are drafted: the bundled draft in the app, behind a server of its own, or prompt
lookup."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row. ``policy`` ``None``: ``openai.AsyncOpenAI``, without specroute."""

    name: str
    policy: Mapping[str, Any] | None
    draft: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the draft's table."""

    @property
    def lossy(self) -> bool:
        """Whether answers other than the target's own are allowed."""
        return self.policy is not None and self.policy.get("exactness") == "heuristic"

    @property
    def whole(self) -> bool:
        """Whether an answer is drafted to its end before anything is asked of the target."""
        return self.policy is not None and self.policy.get("method") == "cascade"

    @property
    def learns(self) -> bool:
        """Whether its policy goes by what it has measured."""
        return self.policy is not None and self.policy["preset"] != "fixed"


def _fixed(**params: Any) -> dict[str, Any]:
    return {"preset": "fixed", **params}


def _lossy(rule: str, **params: Any) -> dict[str, Any]:
    return _fixed(acceptance=rule, exactness="heuristic", **params)


def _ratio(tau: float) -> dict[str, Any]:
    return _lossy("ratio", tau=tau, num_speculative_tokens=64)


SURE = {"min_probability": 0.5}
"""A round's draft ends after a token that the draft gives less."""
PLAIN = "AsyncOpenAI"
ALONE = (
    Setting(PLAIN, None),
    Setting("score K = 16, sure .5", _fixed(num_speculative_tokens=16), options=SURE),
    Setting("latency", {"preset": "latency"}),
    Setting("balanced", {"preset": "balanced"}),
    Setting("cost", {"preset": "cost"}),
    Setting("balanced, sure .5", {"preset": "balanced"}, options=SURE),
    Setting("score K = 4", _fixed(num_speculative_tokens=4)),
    Setting("score K = 8", _fixed(num_speculative_tokens=8)),
    Setting("score K = 8, 2 in flight", _fixed(num_speculative_tokens=8, rounds_in_flight=2)),
    Setting("score K = 16", _fixed(num_speculative_tokens=16)),
    Setting("score K = 64, sure .5", _fixed(num_speculative_tokens=64), options=SURE),
    Setting("score K = 16, fleet draft", _fixed(num_speculative_tokens=16), FLEET),
    Setting("ratio .99, K = 64, sure .5", _ratio(0.99), options=SURE),
    Setting("ratio .9, K = 64, sure .5", _ratio(0.9), options=SURE),
    Setting("ratio .3, K = 64, sure .5", _ratio(0.3), options=SURE),
    Setting("typical, K = 64, sure .5", _lossy("typical", num_speculative_tokens=64), options=SURE),
)
"""One at a time, each against ``AsyncOpenAI`` before and after all of them."""
BESIDE = (
    (Setting("specroute, plain", _fixed(method="plain")),),
    (
        Setting("cascade", _fixed(method="cascade")),
        Setting("score K = 16, n-gram draft", _fixed(num_speculative_tokens=16), NGRAM),
    ),
    (
        Setting("cascade, fleet draft", _fixed(method="cascade"), FLEET),
        Setting("judge", _fixed(method="judge", exactness="heuristic"), FLEET),
    ),
    (
        Setting("race", _fixed(method="race", exactness="heuristic"), FLEET),
        Setting("cascade, ratio .3", _lossy("ratio", tau=0.3, method="cascade")),
    ),
)
"""The target generates most of these answers: minutes of waiting and little computing. They run two
at a time, the first of them beside ``AsyncOpenAI``, which all of them are compared with."""
EVERY = (*ALONE, *(setting for pair in BESIDE for setting in pair))
RISING = (PLAIN, "balanced", "latency", "score K = 64, sure .5")
"""Those that the rise of the load is run with."""


def named(name: str) -> Setting:
    """``ValueError`` for one that there isn't."""
    for setting in EVERY:
        if setting.name == name:
            return setting
    names = "; ".join(setting.name for setting in EVERY)
    raise ValueError(f"no setting {name!r}: expected one of {names}")

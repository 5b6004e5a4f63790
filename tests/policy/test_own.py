"""A policy of one's own: named in a file, never by a request."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specroute.candidates import Candidates
from specroute.config import load, parse_policy
from specroute.errors import ConfigError
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Figures, Plan, RoundView
from specroute.policy.make import make_policy
from specroute.types import Exactness, Method


@dataclass
class Never:
    """Always plain."""

    because: str = "it is Sunday"
    lossy: None = None

    @property
    def eager(self) -> bool:
        return False

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        return Plan(Method.PLAIN, None, 0, self.because)

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        return 0


class NoPolicy:
    """Has nothing of it."""


NAME = f"{__name__}:Never"


def config_with(tmp_path: Path, policy: str) -> Any:
    file = tmp_path / "specroute.toml"
    file.write_text(f'version = 1\n[models.m]\ntargets = ["openai:x"]\npolicy = {policy}\n')
    return load(file).models["m"].policy


def test_a_file_may_name_a_class(tmp_path: Path) -> None:
    """Its other keys are what the class is called with."""
    found = config_with(tmp_path, f'{{ preset = "{NAME}", because = "no", exactness = "exact" }}')
    policy, floor = make_policy(found)
    assert isinstance(policy, Never)
    assert (policy.because, floor) == ("no", Exactness.EXACT)
    policy, floor = make_policy(config_with(tmp_path, f'"{NAME}"'))
    assert isinstance(policy, Never)
    assert floor is Exactness.BOUNDED


def test_a_request_may_not() -> None:
    """It would run any code there is."""
    with pytest.raises(ConfigError, match="can only be named in a config file"):
        parse_policy(NAME)
    with pytest.raises(ConfigError, match="can only be named in a config file"):
        parse_policy({"preset": NAME})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Policy", "ModuleNotFoundError"),
        (f"{__name__}:Nothing", "AttributeError"),
        (f"{__name__}:NoPolicy", "needs eager, lossy"),
    ],
)
def test_what_is_no_policy_is_said(tmp_path: Path, name: str, said: str) -> None:
    """With the reason."""
    with pytest.raises(ConfigError, match=said):
        make_policy(config_with(tmp_path, f'"{name}"'))


def test_a_wrong_name_is_a_problem_of_the_file(tmp_path: Path) -> None:
    """Found when it is read."""
    with pytest.raises(ConfigError, match="'module:Class', got 'a b:C'"):
        config_with(tmp_path, '"a b:C"')


def test_wrong_parameters_are_said(tmp_path: Path) -> None:
    """By the class itself."""
    found = config_with(tmp_path, f'{{ preset = "{NAME}", k = 3 }}')
    with pytest.raises(ConfigError, match="unexpected keyword argument 'k'"):
        make_policy(found)

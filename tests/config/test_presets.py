"""Policy presets: names, typed parameters, limits; and the policies they are for."""

import pytest

from specroute import tables
from specroute.errors import ConfigError
from specroute.presets import load_preset, preset_names


def test_the_presets_that_ship() -> None:
    """Each is read, has a sentence, and holds its own limits."""
    assert preset_names() == ("balanced", "cost", "exact-only", "fixed", "latency")
    for name in preset_names():
        preset = load_preset(name)
        assert preset.summary.endswith(".")
        for key, value in preset.params.items():
            assert preset.read(key, value) == value


def test_every_preset_makes_a_policy() -> None:
    """A preset's parameters are those that its policy takes."""
    make = pytest.importorskip("specroute.policy.make")
    from specroute.config import PolicyConfig

    for name in preset_names():
        assert make.make_policy(PolicyConfig(name)) is not None


def test_an_unknown_preset_is_suggested() -> None:
    """The error lists the known ones."""
    with pytest.raises(
        ConfigError,
        match=r"did you mean 'balanced'.*known: balanced, cost, exact-only, fixed, latency",
    ):
        load_preset("balance")


@pytest.mark.parametrize(
    ("key", "value"),
    [("tau", 1.5), ("mean_logprob", 0.5), ("min_accept", 70), ("hedge", 5), ("agreement", 90)],
)
def test_a_share_above_one_is_named(key: str, value: float) -> None:
    """In the config's words, not as whatever the policy's own parts would raise."""
    with pytest.raises(tables.Expected, match="≤"):
        load_preset("fixed").read(key, value)

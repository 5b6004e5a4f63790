"""docs/policy.md shows the presets as they ship."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from specroute.config import parse_policy
from specroute.policy.make import make_policy
from specroute.presets import load_preset, preset_names

TEXT = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()


def test_the_table_of_presets_is_current() -> None:
    """Every preset, with what a second is worth and what it may cost."""
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|[^|]*\|$", TEXT, re.MULTILINE))
    assert sorted(rows) == sorted(preset_names())
    for name, shown in rows.items():
        params = load_preset(name).params
        usd, ratio = shown.split(" | ")
        if name == "fixed":
            assert "usd_per_second" not in params
            continue
        assert float(usd) == params["usd_per_second"]
        assert (0.0 if ratio == "none" else float(ratio)) == params["max_cost_ratio"]


def test_the_config_in_it_is_one() -> None:
    """As written."""
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    policy = tomllib.loads(block)["models"]["smart"]["policy"]
    made, _ = make_policy(parse_policy(policy))
    assert made.objective.usd_per_second == 0.002  # type: ignore[attr-defined]

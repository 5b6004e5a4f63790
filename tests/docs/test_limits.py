"""docs/limits.md: its example is a config, and its numbers are the code's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from specroute.config import parse
from specroute.limits import estimate

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")


def test_the_example_is_a_config() -> None:
    """Every key of it."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    config = parse(tomllib.loads(text), "limits.md", {})
    assert config.providers["lab"].limits == {"rpm": 600, "tpm": 200_000}
    assert (config.daily_usd, config.models["smart"].max_cost_usd) == (5.0, 0.02)


def test_the_numbers_are_the_codes() -> None:
    """What an estimate is made of."""
    assert f"bytes / {estimate.BYTES_PER_TOKEN} and {estimate.PER_MESSAGE} tokens a message" in PAGE
    assert f"({estimate.PER_IMAGE} a picture)" in PAGE
    assert f"or {estimate.OUTPUT} where" in PAGE

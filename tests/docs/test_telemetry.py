"""docs/telemetry.md: its table of metrics is the code's, and its example is a config."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from specroute.config import TelemetryConfig, parse
from specroute.telemetry import names
from specroute.telemetry.otel import _SPAN_FIELDS
from specroute.telemetry.table import metrics_table

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def test_the_table_is_the_codes() -> None:
    """`make docs` writes it."""
    found = re.search(r"<!-- metrics: begin -->\n(.*)<!-- metrics: end -->", PAGE, re.S)
    assert found is not None
    assert found[1] == metrics_table()


def test_the_example_shows_the_defaults() -> None:
    """Every key of the table."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    assert parse(tomllib.loads(text), "telemetry.md", {}).telemetry == TelemetryConfig()


def test_every_attribute_is_named() -> None:
    """A new one needs a line in the docs."""
    own = [f"specroute.{f}" for f in _SPAN_FIELDS]
    theirs = [v for v in vars(names).values() if isinstance(v, str) and v.startswith("gen_ai.")]
    for name in (*own, *theirs):
        last = name.rpartition(".")[2]
        assert f"`{name}`" in PAGE or f".{last}`" in PAGE or f"`{last}`" in PAGE, name

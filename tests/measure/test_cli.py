"""``specroute measurements`` shows what was kept for a config, and nothing that isn't its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specroute.cli import app
from specroute.config import load
from specroute.measured import Kept
from tests.measure.test_kept import measured

CONFIG = """
version = 1
[providers.lab]
profile = "vllm"
base_url = "http://10.0.0.5/v1"
[models.smart]
targets = ["lab:big"]
drafts = ["ngram"]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "specroute.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_figure_is_shown_with_interval_weight_and_age(config: Path) -> None:
    """As a table and as JSON."""
    Kept(load(config)).save(measured())
    table = run("measurements", "--file", str(config))
    for word in ("ttft", "tpot", "round", "acceptance S(1..)", "lab:big ngram argmax", "ms", "all"):
        assert word in table
    shown = json.loads(run("measurements", "--file", str(config), "--json"))
    by_name = {(f["figure"], f["class"]): f for f in shown["figures"]}
    tpot = by_name["tpot", ""]
    assert tpot["mean"] == pytest.approx(0.03)
    assert tpot["low"] < 0.03 < tpot["high"]
    assert tpot["age_s"] < 60
    accepted = by_name["acceptance", "chat#a/prose/1k"]
    assert len(accepted["survival"]) == 3
    assert accepted["alpha"] == pytest.approx(2 / 3)


def test_nothing_measured_is_said(config: Path) -> None:
    """With the file it would be in."""
    assert "Nothing was measured yet" in run("measurements", "--file", str(config))
    shown = json.loads(run("measurements", "--file", str(config), "--json"))
    assert shown["figures"] == []

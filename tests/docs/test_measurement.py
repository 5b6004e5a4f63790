"""docs/measurement.md: its code runs, its config is one, its fields are the recorder's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from specroute.config import Record, Shadow, parse
from specroute.overheard import Overheard
from specroute.recorder import Recorder, Trace
from specroute.types import Report

PAGE = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A survival curve, a time with its interval, a draw."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(code, {})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "[1.0, 0.99, 0.75, 0.5]"
    mean = re.match(r"Estimate\(mean=([0-9.]+), ", second)
    assert mean is not None and float(mean[1]) == pytest.approx(0.05)
    assert third.startswith("(")


def test_the_config_is_one() -> None:
    """With the defaults that the page gives."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    config = parse(tomllib.loads(text), "measurement.md", {})
    assert config.record == Record("traces.jsonl")
    assert config.shadow == Shadow() == parse({"version": 1}, "empty", {}).shadow


def test_every_recorded_field_is_described() -> None:
    """And nothing else."""
    trace = Trace("/chat/completions", {"messages": []}, overheard=Overheard())
    recorder = Recorder(Record("x", texts=True), None, lambda _: None)  # type: ignore[arg-type]
    line = recorder._request(Report("r", "m"), trace, 0.0)
    (table,) = re.findall(r"\| `request` \|.*?\n\n", PAGE, flags=re.S)
    described = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\|([^|]*)\|", table, flags=re.M)))
    )
    assert described == (set(line) - {"kind"}) | {"request"}

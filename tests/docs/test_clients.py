"""docs/clients.md: its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
SCRIPT = {"name": "m", "answers": [{"when": "order", "text": "It is on its way."}]}
CONFIG = """
version = 1
[providers.lab]
profile = "reference"
base_url = "{url}"
[models.smart]
targets = ["lab:m"]
"""


def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole answer, its report, and a stream."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    with ReferenceServer(SCRIPT) as server:
        text = CONFIG.format(url=server.base_url)
        (tmp_path / "specroute.toml").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        space: dict[str, Any] = {}
        exec(code, space)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["It is on its way.", "plain"]
    assert lines[2]

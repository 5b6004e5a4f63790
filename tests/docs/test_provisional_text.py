"""The page on provisional text runs as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specroute.reference.bundled import draft_dir
from specroute.reference.running import ReferenceServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "provisional-text.md").read_text(encoding="utf-8")


async def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It follows an answer of the README's config and prints when its first text came."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", readme, flags=re.S)
    spec = {"name": "Qwen/Qwen3-32B", "answers": [{"when": "Hi", "text": "It is on its way."}]}
    with ReferenceServer(spec) as server:
        toml = toml.replace("http://10.0.0.5:8000/v1", server.base_url)
        toml = toml.replace("Qwen/Qwen3-0.6B", str(draft_dir()))
        (tmp_path / "specroute.toml").write_text(toml, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LAB_API_KEY", "k")
        space: dict[str, Any] = {}
        body = textwrap.indent(code + "assert provisional == ''\nreturn committed", "    ")
        exec(f"async def snippet():\n{body}", space)
        assert await space["snippet"]() == "It is on its way."
    assert capsys.readouterr().out.strip()

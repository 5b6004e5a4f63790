"""The README's code runs as it stands, and its config is one."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specroute.config import parse
from specroute.reference.bundled import draft_dir
from specroute.reference.running import ReferenceServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = {"name": "Qwen/Qwen3-32B", "answers": [{"when": "order", "text": "It is on its way."}]}


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_the_config_parses() -> None:
    """The README's specroute.toml is accepted, its draft and policy included."""
    import tomllib

    (text,) = _blocks("toml")
    config = parse(tomllib.loads(text), "README.md", {"LAB_API_KEY": "k"})
    assert config.models["smart"].drafts == ("qwen",)


async def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's snippet streams an answer and prints its report."""
    (toml,) = _blocks("toml")
    (code,) = _blocks("python")
    with ReferenceServer(SCRIPT) as server:
        toml = toml.replace("http://10.0.0.5:8000/v1", server.base_url)
        toml = toml.replace("Qwen/Qwen3-0.6B", str(draft_dir()))
        (tmp_path / "specroute.toml").write_text(toml, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LAB_API_KEY", "k")
        space: dict[str, Any] = {}
        exec(f"async def snippet():\n{textwrap.indent(code, '    ')}", space)
        await space["snippet"]()
    shown = capsys.readouterr().out
    assert shown.startswith("It is on its way.")
    assert "Report(" in shown and "complete=True" in shown


def test_every_page_that_is_named_is_there() -> None:
    """Relative links of the README and the docs lead somewhere."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_page_has_a_gap() -> None:
    """Nothing that was to be filled in was left."""
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        assert "@@" not in page.read_text(encoding="utf-8"), page.name

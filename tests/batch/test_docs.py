"""The page's code runs as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.client.world import config
from tests.support.loopback import Exchange, Loopback, completion

PAGE = (Path(__file__).parents[2] / "docs" / "batches.md").read_text(encoding="utf-8")


async def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both questions are answered, and the journal is there."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)

    async def handler(exchange: Exchange) -> None:
        text = exchange.json["messages"][0]["content"]
        await exchange.json_answer(completion(f"You ask: {text}"))

    async with Loopback(handler) as server:
        lab = config(server.url)["providers"]["lab"]
        toml = "".join(f'{key} = "{value}"\n' for key, value in lab.items())
        (tmp_path / "specroute.toml").write_text(
            f'version = 1\n[providers.lab]\n{toml}[models.smart]\ntargets = ["lab:m"]\n'
        )
        monkeypatch.chdir(tmp_path)
        space: dict[str, Any] = {}
        exec(f"async def snippet():\n{textwrap.indent(code, '    ')}", space)
        await space["snippet"]()
    shown = capsys.readouterr().out
    assert "You ask: Where is my order?" in shown and "You ask: How do I send it back?" in shown
    assert (tmp_path / "answers.journal").exists()

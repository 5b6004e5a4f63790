"""The code of the page on testing runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from specroute.testing import faults

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


async def test_the_snippets_run() -> None:
    """In the order of the page, in one program."""
    snippets = [code for code in CODE if not code.startswith("# test_app.py")]
    assert len(snippets) == len(CODE) - 1
    space: dict[str, Any] = {}
    program = textwrap.indent("\n".join(snippets), "    ")
    exec(f"async def page():\n{program}", space)
    await space["page"]()


def test_the_fixture_works(tmp_path: Path) -> None:
    """pytest takes the test as it stands."""
    (code,) = [code for code in CODE if code.startswith("# test_app.py")]
    (tmp_path / "test_app.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_every_fault_is_on_the_page() -> None:
    """And nothing that is none."""
    named = set(re.findall(r"`([a-z_0-9]+)\(", PAGE.split("## The faults")[1].split("```")[0]))
    assert named == set(faults.__all__) - {"EVERY"}

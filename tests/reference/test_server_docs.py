"""docs/reference-server.md: its code runs, its script loads, and it has every flag and name."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest

from specroute.reference.__main__ import parser
from specroute.reference.access_log import Record
from specroute.reference.options import CAPABILITIES, PREFILLS, QUIRKS, Options
from specroute.reference.script import Script

DOC = (Path(__file__).parents[2] / "docs" / "reference-server.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The document's code in ``language``."""
    return re.findall(rf"```{language}\n(.*?)```", DOC, re.DOTALL)


def test_its_python_runs() -> None:
    """As it stands there."""
    for code in blocks("python"):
        exec(compile(code, "docs/reference-server.md", "exec"), {})


def test_its_script_loads(tmp_path: Path) -> None:
    """And means what the text beside it says."""
    [toml] = blocks("toml")
    (tmp_path / "table.toml").write_text(toml, encoding="utf-8")
    script = Script.load(tmp_path / "table.toml")
    assert script.row(script.encode("a", False)).top(1)[0][1] == pytest.approx(math.log(0.9))
    assert script.piece(script.row(script.encode("ab", False)).greedy({})).decode() == "你好"


def test_its_commands_parse() -> None:
    """Every command line shown, also those in tables."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    played = re.findall(r"\| `(--[^`]*)` \|\n", DOC)
    assert len(lines) == 5
    for line in lines:
        parser().parse_args(shlex.split(line, comments=True)[3:])
    assert len(played) == 5
    for flags in played:
        args = parser().parse_args(shlex.split(flags))
        Options(disable=args.disable, ignore=args.ignore, prefill=args.prefill, quirks=args.quirk)


def test_nothing_is_left_out() -> None:
    """Flags, capabilities, dialects, quirks and fields of a record."""
    flags = [flag for action in parser()._actions for flag in action.option_strings]
    for name in [*flags, *CAPABILITIES, *PREFILLS, *QUIRKS, *Record.__dataclass_fields__]:
        if name not in ("-h", "--help"):
            assert re.search(rf"`{name}\b", DOC), name

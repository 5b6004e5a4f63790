"""``make test`` finds what runs alone by its file: a single test marked so would run nowhere."""

from __future__ import annotations

from pathlib import Path

MARK = "mark." + "alone"


def test_whole_files_are_marked() -> None:
    """The mark stands in a line of its own, as the Makefile looks for it."""
    lines = {
        f"{file.name}: {line}"
        for file in Path(__file__).parent.rglob("test_*.py")
        for line in file.read_text().splitlines()
        if MARK in line and line != f"pytestmark = pytest.{MARK}"
    }
    assert lines == set()

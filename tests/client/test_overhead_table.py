"""What the overhead's bench shows of its rows; ``python bench/overhead.py`` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import page
from bench.overhead_table import Row, Turn, criteria, head, line, per_second


def row(specroute: float, *, at_once: int = 200, litellm: bool = False) -> Row:
    """Three rounds in which openai takes 1, 2 and 4 ms a call, and ours ``specroute`` times that,
    with half the CPU; LiteLLM five times it, in two of them."""
    base = (0.001, 0.002, 0.004)
    turns = {
        "openai": {i: Turn(s, s) for i, s in enumerate(base)},
        "specroute": {i: Turn(s * specroute, s / 2) for i, s in enumerate(base)},
    }
    if litellm:
        turns["litellm"] = {i: Turn(base[i] * 5, base[i] * 6) for i in (0, 2)}
    return Row("httpx2", True, at_once, turns)


def test_a_ratio_is_that_of_a_round() -> None:
    """However different the rounds are; who takes part in some is compared in those."""
    one = row(1.05, litellm=True)
    assert one.ratio("specroute") == pytest.approx(1.05)
    assert one.interval("specroute") == pytest.approx((1.05, 1.05))
    assert one.ratio("specroute", cpu=True) == pytest.approx(0.5)
    assert one.ratios("litellm") == pytest.approx([5.0, 5.0])
    assert one.ratio("litellm", cpu=True) == pytest.approx(6.0)


def test_a_line_has_a_cell_for_each_of_the_heads() -> None:
    """Wall time, ratio, interval and CPU of ours; of a peer without the interval."""
    one = row(1.05, litellm=True)
    titles, _ = head(list(one.turns)).splitlines()
    assert line(one).count("|") == titles.count("|")
    assert line(one) == (
        "| httpx2, stream, 200 | 2.000 ms | 2.100 ms | 1.050 | 1.050–1.050 | 0.500 "
        "| 12.500 ms | 5.000 | 6.000 |"
    )


def test_requests_a_second_are_told_of_the_crowd_alone() -> None:
    """And as a share of openai's."""
    shown = per_second([row(0.8), row(0.8, at_once=50)]).splitlines()
    assert shown[2:] == ["| httpx2, stream | 500 | 625 | 1.25 |"]
    assert per_second([row(0.8, at_once=1)]) == ""


@pytest.mark.parametrize(("times", "good"), [(1.10, True), (1.12, False)])
def test_nine_tenths_of_openais_requests_a_second_are_the_criterion(
    times: float, good: bool
) -> None:
    """At 200 at once; fewer at once have an aim, no criterion."""
    lines, passed = criteria([row(times), row(1.5, at_once=1)])
    assert passed is good
    assert lines[0].startswith("pass" if good else "FAIL")
    assert "1.500: httpx2, stream, 1," in lines[-1]


def test_the_page_is_written_between_its_markers(tmp_path: Path) -> None:
    """What stands around them stays; a page without them is left alone."""
    path = tmp_path / "page.md"
    begin, end = page.BEGIN.format("x", "make x"), page.END.format("x")
    path.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    page.write(path, "x", "make x", "new")
    assert path.read_text(encoding="utf-8") == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(ValueError, match="needs the lines"):
        page.write(path, "y", "make y", "new")
    assert "new" in path.read_text(encoding="utf-8")

"""What a target says when it scores its own words, against what it said."""

from __future__ import annotations

from typing import Any

import pytest

from specroute.target.dialects import agreement
from specroute.target.view import BadEvidence, Position, Sample, View
from specroute.types import Usage

OWN = (4, 6, 9)
VALUES = (-0.5, -0.7, -0.9)
TOPS = (((4, -0.5), (5, -1.5)), ((6, -0.7), (7, -0.8)))
HONEST = (Position(4, -0.5, TOPS[0]), Position(6, -0.7, TOPS[1]))
DRAWS = (Sample((4,), "length"), Sample((6,), "length"), Sample((9,), "length"))


def view(positions: Any = HONEST, bonus: Any = (9,), samples: Any = ()) -> View:
    return View(positions, bonus, "length", Usage(), 0.0, 3, samples)


@pytest.mark.parametrize(
    ("seen", "processed"),
    [
        pytest.param(view(), False, id="alternatives and values"),
        pytest.param(view(), True, id="alternatives alone"),
        pytest.param(
            view((Position(4, -0.5, ()), Position(6, -0.7, ()))), False, id="values alone"
        ),
        pytest.param(view(samples=DRAWS), False, id="draws"),
        pytest.param(
            view(samples=(DRAWS[0], Sample((7,), None), DRAWS[2])), False, id="a near tie drawn"
        ),
        pytest.param(view(bonus=()), False, id="nothing readable generated"),
        pytest.param(view((Position(4, -0.6, TOPS[0]), HONEST[1])), False, id="numerical noise"),
    ],
)
def test_agrees(seen: View, processed: bool) -> None:
    """Passes without a word."""
    agreement.check(seen, OWN, VALUES, processed=processed)


@pytest.mark.parametrize(
    ("seen", "processed", "reason"),
    [
        (view(HONEST[:1]), False, "2 generated tokens came back as 1"),
        (view((HONEST[1], HONEST[0])), False, "generated as 4, scored as 6"),
        (view((Position(4, -2.0, TOPS[0]), HONEST[1])), True, "scored -2.00, the most"),
        (view((Position(4, None, TOPS[0]), HONEST[1])), True, "scored below all shown"),
        (view((Position(4, None, ()), HONEST[1])), False, "no log-probability"),
        (view((Position(4, -0.5, ()), HONEST[1])), True, "neither"),
        (view((Position(4, -1.1, ()), HONEST[1])), False, "-0.50 and is scored -1.10"),
        (view(bonus=(8,)), False, "generated 8, before it was 9"),
        (view(samples=(Sample((5,), None), *DRAWS[1:])), False, "token 0, 4, the target drew 5"),
        (view(samples=(Sample((), "stop"), *DRAWS[1:])), False, "drew None"),
    ],
)
def test_differs(seen: View, processed: bool, reason: str) -> None:
    """Says what differs."""
    with pytest.raises(BadEvidence, match=reason):
        agreement.check(seen, OWN, VALUES, processed=processed)

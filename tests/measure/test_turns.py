"""How long a turn of the caller's loop takes, and what of that a round is charged with."""

import pytest

from specroute.measure import Measurements
from specroute.measure.turns import LOST_S, PER_ROUND, USUAL_S, Turns


def test_a_turn_that_has_not_come_yet_is_as_long_as_it_has_been_waited_for() -> None:
    """A thousand plans are made within one turn: the first of them can't know, the last does."""
    turns = Turns()
    assert turns.asks(0.0)
    assert turns.late_s == 0
    assert not turns.asks(1.0)
    assert turns.late_s == pytest.approx(1.0 - USUAL_S)


def test_the_last_turn_says_something_for_a_while() -> None:
    """As long as it took itself, and half a second at least; one of the usual length, nothing."""
    turns = Turns()
    turns.asks(0.0)
    turns.came(2.0)
    turns.asks(3.9)
    assert turns.late_s == pytest.approx(2.0 - USUAL_S)
    turns.came(3.9 + 0.9 * USUAL_S)
    assert turns.asks(4.0 + USUAL_S)
    assert turns.late_s == 0
    turns.came(9.0)
    turns.asks(9.0 + 5.0)
    assert turns.late_s == 0


def test_a_turn_of_a_loop_that_is_closed_is_not_waited_for() -> None:
    """It will never come."""
    turns = Turns()
    turns.asks(0.0)
    assert turns.asks(LOST_S + 1)
    assert turns.late_s == 0


def test_rounds_are_kept_waiting_by_each_of_their_turns() -> None:
    """And those of a request that is alone with the client are not."""
    seen = Measurements()
    seen.turns.asks(0.0)
    seen.turns.asks(1.0)
    seen.begin("t", 0.0)
    assert seen.snapshot("t", "d", "c").crowd.waits_s == 0
    seen.begin("t", 0.0)
    waits = PER_ROUND * (1.0 - USUAL_S)
    assert seen.snapshot("t", "d", "c").crowd.waits_s == pytest.approx(waits)
    assert seen.crowd("t", "d").waits_s == pytest.approx(waits)

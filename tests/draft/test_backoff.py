"""A failure is repeated, not retried, until its time is up."""

import pytest

from specroute.draft.backoff import Backoff
from specroute.errors import DraftError


def test_waits_double_up_to_the_most_and_success_forgets():
    """10, 20, 30, 30 seconds, and 10 again after a success."""
    now = [0.0]
    backoff = Backoff(lambda: now[0], 10, 30)
    backoff.check()
    for wait in (10, 20, 30, 30):
        assert str(backoff.failed("down")) == "down"
        now[0] += wait - 1
        with pytest.raises(DraftError, match=r"^down \(not tried again for 1 s\)$"):
            backoff.check()
        now[0] += 1
        backoff.check()
    backoff.succeeded()
    backoff.failed("down")
    now[0] += 10
    backoff.check()

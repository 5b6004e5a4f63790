"""What is estimated together: of a target, a class, a way of judging, a draft, a prediction.

Each has the estimators of one key and when it was last seen. Knows no keys.
"""

from __future__ import annotations

from specroute.measure.anchor import Anchor
from specroute.measure.crowd import Crowding
from specroute.measure.drafting import Drafting
from specroute.measure.estimate import Law
from specroute.measure.level import Factor, Frequency, Length, Level, Mean, Share
from specroute.measure.regression import Regression
from specroute.measure.together import Together

Doing = tuple[str | None, str, str | None]
"""What is done together: another target it is left to, the method, the drafter."""


def _round_law() -> Regression:
    return Regression((1000.0, 10.0), (0.02, 0.02), decay=0.99)


def _ttft_law() -> Regression:
    return Regression((1000.0, 10.0), (0.05, 0.2))


def _tpot_law() -> Regression:
    return Regression((1000.0, 10.0), (0.002, 0.02))


def _first_draft_law() -> Regression:
    return Regression((1000.0, 1.0), (0.1, 1e-6))


class Target:
    """What is known of one target whatever is drafted: pace, refusals, what it caches."""

    __slots__ = (
        "beside",
        "cached",
        "crowd",
        "failed",
        "idle",
        "in_flight",
        "limited",
        "seen_at",
        "together",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.ttft, self.tpot = _ttft_law(), _tpot_law()
        self.failed, self.limited = Share(), Share()
        self.cached: dict[str, Share] = {}
        self.in_flight = 0
        self.idle = 0
        """Requests planned with speculation since a stream of its own was timed."""
        self.beside: tuple[str, Law] | None = None
        """How rounds were judged then, and what they took."""
        self.crowd = Crowding(self.tpot)
        self.together: dict[Doing, Together] = {}
        """Of each plan, those who follow it at the same time."""
        self.seen_at = 0.0

    def goes_on(self, before: Target) -> None:
        """Take the place of ``before``, whose requests are still under way."""
        self.in_flight, self.crowd = before.in_flight, before.crowd
        self.together = before.together
        self.crowd.pace = self.tpot


class Class:
    """What a traffic class has of its own at a target: its pace against the target's, lengths."""

    __slots__ = ("answer", "seen_at", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft, self.tpot = Factor(), Factor()
        self.answer = Length(0.95)
        self.seen_at = 0.0


class Judged:
    """What one way of judging costs at a target: the scoring request, and what the rules draw."""

    __slots__ = ("anchor", "draw", "drawing", "draws", "law", "seen_at")

    def __init__(self) -> None:
        self.law = _round_law()
        self.anchor = Anchor()
        self.draws = Frequency()
        """Per judged token."""
        self.draw = Level()
        """Seconds of one."""
        self.drawing = Mean(0.98)
        """Seconds of all of a round's."""
        self.seen_at = 0.0


class Draft:
    """How long a drafter takes: per token, and for reading a prompt."""

    __slots__ = ("crowd", "first", "seen_at", "token")

    def __init__(self) -> None:
        self.crowd = Drafting()
        self.token = Level(0.9)
        self.first = _first_draft_law()
        self.seen_at = 0.0


class Prediction:
    """What share of predicted tokens a server takes, how many it is sent, how fast it is then."""

    __slots__ = ("seen_at", "sent", "taken", "tpot")

    def __init__(self) -> None:
        self.taken = Share(0.95)
        self.sent, self.tpot = Level(0.95), Level(0.95)
        self.seen_at = 0.0

"""Where each figure of a client stands: its estimators by target, drafter, judge and traffic class.

Knows what they are filed under, which are made where nothing was seen yet, which make room, and who
is told of what is entered. Not what that is (``measurements``), nor how figures combine
(``reading``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from specroute.measure.kinds import Class, Draft, Judged, Prediction, Target
from specroute.measure.lending import Rounds
from specroute.measure.traffic import lineage
from specroute.measure.turns import Turns

MOST_CLASSES = 1024
"""Traffic classes kept, per kind of figure; those not seen for longest make room."""

K = TypeVar("K")
V = TypeVar("V")

Note = tuple[Any, ...]
"""One observation as :attr:`Files.heard` is told of it: its kind and what it says."""


class Files:
    """All estimators of one client."""

    def __init__(self) -> None:
        self.targets: dict[str, Target] = defaultdict(Target)
        self.classes: dict[tuple[str, str], Class] = {}
        self.judged: dict[tuple[str, str], Judged] = defaultdict(Judged)
        self.drafts: dict[str, Draft] = defaultdict(Draft)
        self.rounds: dict[tuple[str, str, str, str], Rounds] = {}
        """By target, drafter, judge and class."""
        self.temperatures: dict[tuple[str, str, str, float], Rounds] = {}
        """By target, drafter, judge and the draft's temperature."""
        self.predictions: dict[tuple[str, str, str], Prediction] = {}
        """By target, drafter and class."""
        self.since: dict[tuple[str, str, str], int] = defaultdict(int)
        self.turns = Turns()
        self.heard: Callable[[Note], None] | None = None
        """Told of each observation, so that other workers may hear of it: no more than an append,
        since requests wait for it. Fading and what is under way are this client's own."""

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What is measured within is told to nobody: it comes from others."""
        heard, self.heard = self.heard, None
        try:
            yield
        finally:
            self.heard = heard

    def take_over(self, other: Files) -> None:
        """Have the figures of ``other`` in the place of these; what is under way, and what was
        learned of the crowd, which is this client's own, stay."""
        targets, drafts = self.targets, self.drafts
        self.targets, self.classes, self.judged = other.targets, other.classes, other.judged
        self.drafts, self.rounds = other.drafts, other.rounds
        self.temperatures, self.predictions = other.temperatures, other.predictions
        for name, target in targets.items():
            self.targets[name].goes_on(target)
        for name, draft in drafts.items():
            self.drafts[name].crowd = draft.crowd

    def own_class(self, target: str, traffic: str) -> Class:
        """What a class has of its own, made if it has nothing yet."""
        found = self.classes.get((target, traffic))
        if found is None:
            make_room(self.classes, MOST_CLASSES)
            found = self.classes[target, traffic] = Class()
        return found

    def rounds_of(self, target: str, drafter: str, how: str, traffic: str) -> Rounds:
        """A class's rounds, made (with those above it) if there are none yet."""
        found = self.rounds.get((target, drafter, how, traffic))
        if found is None:
            make_room(self.rounds, MOST_CLASSES)
            parent = None
            for name in reversed(lineage(traffic)):
                key = (target, drafter, how, name)
                parent = self.rounds.get(key) or self.rounds.setdefault(key, Rounds(parent))
            assert parent is not None
            found = parent
        return found


def make_room(kept: dict[K, V], most: int) -> None:
    """Where ``most`` are kept, let go of the quarter that was seen longest ago."""
    if len(kept) >= most:
        oldest = sorted(kept, key=lambda key: (getattr(kept[key], "seen_at", 0.0), _coarse(key)))
        for key in oldest[: most // 4]:
            del kept[key]


def _coarse(key: object) -> bool:
    return isinstance(key, tuple) and "/" not in str(key[-1])

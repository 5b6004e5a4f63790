"""Whom one request may ask, and in which order: the targets, what became of each, what is left.

Pure. Knows faults, not errors; knows no clock and no health (whoever asks picks the first of the
options that is fit to be asked).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specroute.http.faults import Fault, repeatable
from specroute.types import Exactness, TargetRef


class Itinerary:
    """``targets`` in order of preference. The first call to each is free, another one to the same
    target takes one of ``retries``. ``fallback_on``: the faults that move on to another target."""

    def __init__(
        self,
        targets: Sequence[TargetRef],
        fallback_on: Collection[str],
        retries: int,
        meant: TargetRef | None = None,
    ) -> None:
        self.targets = tuple(targets)
        self.meant = meant or self.targets[0]
        """The user's first choice: the policy may have put another one first."""
        self.retries = retries
        self._fallback_on = fallback_on
        self._asked: dict[TargetRef, Fault | None] = {}
        """Who was asked, and the fault that came of it last."""
        self.here: TargetRef | None = None

    @property
    def preferred(self) -> TargetRef:
        return self.targets[0]

    def asked(self, target: TargetRef) -> bool:
        """Whether it was asked before: then it is a retry."""
        return target in self._asked

    def go(self, target: TargetRef) -> None:
        """``target`` is asked now."""
        if target in self._asked:
            self.retries -= 1
        self._asked[target] = None
        self.here = target

    def moves(self, fault: Fault) -> bool:
        """Whether ``fault`` may bring the request to another target."""
        return (
            fault is Fault.REFUSED and bool(self._fallback_on)
        ) or fault.value in self._fallback_on

    @property
    def last(self) -> bool:
        """Whether :attr:`here` is all that is left to be asked for the first time."""
        for target in self.targets:
            if target not in self._asked:
                return not self.moves(Fault.RATE)
        return True

    def options(self, fault: Fault | None = None, *, resuming: bool = False) -> list[TargetRef]:
        """Who may be asked next, the best first.

        ``fault``: what came of the call to :attr:`here`; ``None``: nothing that another target
        could make good. ``resuming``: an answer that has begun is taken up, best by the target
        that began it; else one that was not asked yet comes first.
        """
        here = self.here
        if here is None:
            return list(self.targets)
        if fault is None:
            return [here] if self.retries > 0 else []
        self._asked[here] = fault
        again = [
            target
            for target in self.targets
            if self.retries > 0 and self._may_repeat(target, resuming)
        ]
        if not self.moves(fault):
            return [here] if here in again else []
        fresh = [target for target in self.targets if target not in self._asked]
        if resuming and here in again:
            again.remove(here)
            return [here, *fresh, *again]
        return [*fresh, *again]

    def _may_repeat(self, target: TargetRef, resuming: bool) -> bool:
        fault = self._asked.get(target, Fault.REFUSED)
        return fault is None or repeatable(fault) or (resuming and fault is Fault.STALL)


def substitute(preferred: TargetRef, target: TargetRef) -> tuple[Exactness, str] | None:
    """What an answer by ``target`` is worth where ``preferred`` was meant; ``None``: the same."""
    if target == preferred:
        return None
    if target.model.lower() == preferred.model.lower():
        return Exactness.BOUNDED, f"answered by {target}: the same model at another provider"
    return Exactness.HEURISTIC, f"answered by {target} in the place of {preferred}"

"""What was decided a moment ago for a request like this one.

A thousand requests that come together are planned one after the other in one turn of the event
loop, before the first of them is sent, and hardly any comes to another end than the one before it.
Where that turn has lasted for a while, a request takes over what was decided in it for the last one
of its kind, if that was to go plain. Knows turns and reasons; no figures and no policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specroute.candidates import Candidate, Candidates
from specroute.measure.turns import Turns
from specroute.policy.base import Ask, Plan
from specroute.types import Method

LONG_S = 0.02
"""A turn in which some forty requests have been weighed: as many as a batch has under way."""
ALIKE = 2.0
"""Prompts of one class whose lengths differ by no more than this factor are alike."""


@dataclass(frozen=True, slots=True)
class _Decided:
    context: int
    max_tokens: int | None
    plans: tuple[Candidate, ...]
    reason: str


@dataclass(slots=True)
class Moment:
    """The turn that is under way, and why requests were left to plain calls in it, by kind."""

    turn: int = -1
    kinds: dict[tuple[str, str], _Decided] = field(default_factory=dict)

    def reason(
        self, kind: tuple[str, str], ask: Ask, options: Candidates, turns: Turns, now: float
    ) -> str | None:
        """Why this one goes plain as well; ``None``: it is weighed."""
        if self.turn != turns.number or turns.lasts(now) < LONG_S:
            return None
        found = self.kinds.get(kind)
        if found is None or found.max_tokens != ask.max_tokens or found.plans != options.plans:
            return None
        short, long = sorted((found.context, ask.context))
        return found.reason if long <= ALIKE * short else None

    def decided(
        self, kind: tuple[str, str], ask: Ask, options: Candidates, turns: Turns, plan: Plan
    ) -> None:
        """A request was weighed. One that is plain for a purpose of its own, or because nothing is
        known yet, says nothing of others; neither does one that isn't plain."""
        if self.turn != turns.number:
            self.turn = turns.number
            self.kinds.clear()
        purpose = plan.yardstick or plan.strays
        if plan.method is Method.PLAIN and plan.plain is not None and not purpose:
            self.kinds[kind] = _Decided(ask.context, ask.max_tokens, options.plans, plan.reason)
        else:
            self.kinds.pop(kind, None)

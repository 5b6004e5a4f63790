"""What a policy is: two pure functions over frozen figures. It can't reach the network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specroute.acceptance import Lossy
from specroute.candidates import Candidate, Candidates
from specroute.measure import Acceptance, Snapshot
from specroute.types import Method

_UNKNOWN_ANSWER = 256.0
"""Tokens that an answer is taken to have where none was measured and none was asked for."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a whole request is expected to take: seconds to its end, and dollars (``None``:
    prices are not known)."""

    seconds: float
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be done, and why, in one sentence. ``k`` is the first round's K.

    The settings below ``reason`` belong to the methods that have them; 0 leaves a setting to the
    method itself.
    """

    method: Method
    drafter: str | None
    k: int
    reason: str
    target: str | None = None
    """``provider:model``; ``None`` is the request's own target."""
    lanes: int = 0
    """Streams beside the plain one."""
    chunk: int = 0
    """Drafted tokens from one lane's start to the next one's."""
    worth: float = 0.0
    """The least chance of being reached at which a lane is started."""
    max_rounds: int = 0
    """Hand over to a plain stream after so many rounds; 0 is no limit."""
    draft_temperature: float | None = None
    """What the drafter draws at; ``None`` is as configured, else the request's own."""
    predicted: Forecast | None = None
    """Of this plan."""
    plain: Forecast | None = None
    """Of a plain call to the request's own target: the yardstick."""
    trial: bool = False
    """Chosen to learn something; it is not expected to win."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a policy may know of a request, and what there is to spend on it."""

    context: int = 0
    """Prompt tokens, about."""
    max_tokens: int | None = None
    seconds: float | None = None
    """Until its deadline; ``None`` is no limit."""
    dollars: float | None = None
    """The most that it may cost: the request's own limit and what is left of a budget."""

    def answer_tokens(self, figures: Snapshot) -> float:
        """Tokens that the answer is expected to have: as others had, within ``max_tokens``."""
        seen = figures.pace.answer_tokens
        tokens = seen if seen is not None else _UNKNOWN_ANSWER
        return max(1.0, tokens if self.max_tokens is None else min(tokens, self.max_tokens))


@dataclass(frozen=True, slots=True)
class RoundView:
    """One request in the middle of speculating."""

    rounds: int
    committed: int
    """Tokens of the answer so far."""
    remaining: int | None
    """Tokens left of ``max_tokens``."""
    own: Acceptance
    """This request's own rounds."""
    verify_s: float | None
    """Mean of this request's own scoring requests."""
    draft_s: float | None
    """Mean per drafted token in this request."""
    plan: Plan | None = None
    """What was planned for it."""


Figures = Callable[[Candidate], Snapshot]
"""What was measured for a candidate, in the traffic class of the request at hand."""


class Policy(Protocol):
    """Chooses a plan for each request and K for each of its rounds.

    Both are pure: no I/O, no clock; chance comes from ``rng`` alone. A policy of one's own is a
    class with these four, named ``module:Class`` in a config file.
    """

    @property
    def eager(self) -> bool:
        """A target is calibrated before its first request, not beside it."""
        ...

    @property
    def lossy(self) -> Lossy | None:
        """The lossy acceptance rule to use, where one was asked for."""
        ...

    def plan(self, ask: Ask, options: Candidates, figures: Figures, rng: random.Random) -> Plan:
        """Choose a plan. ``plain`` is always among the options."""
        ...

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """Tokens to draft in the next round; 0 hands over to the plain stream."""
        ...

"""What a policy is: two pure functions over frozen figures. It can't reach the network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from specroute.acceptance import Lossy
from specroute.candidates import Candidate, Candidates
from specroute.measure import Acceptance, Snapshot
from specroute.measure.together import NOBODY_ELSE, Room
from specroute.policy.account import Account, Key
from specroute.policy.objective import Forecast
from specroute.types import Method

__all__ = ["Accounting", "Ask", "Choosing", "Figures", "Forecast", "Plan", "Policy", "RoundView"]

_UNKNOWN_ANSWER = 256.0
"""Tokens that an answer is taken to have where none was measured and none was asked for."""


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
    depth: int = 0
    """Scoring rounds in flight at a time; 0 and 1 are one."""
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
    tries: int = 0
    """Rounds after which a trial that doesn't win goes plain,"""
    behind_s: float = math.inf
    """or one that would then be later than plain by more than so many seconds,"""
    risk: Forecast | None = None
    """and what it may have lost until then."""
    yardstick: bool = False
    """Plain, only to keep plain's pace known."""
    strays: float = 0.0
    """J expected beyond the best plan's: another that wins as well was drawn."""
    usd_per_second: float | None = None
    """What rounds weigh dollars by, where a limit makes it another than the objective's."""

    @property
    def key(self) -> Key:
        """What is used for what: (target, method, drafter)."""
        return self.target, self.method, self.drafter


def _nobody_else(_: Candidate) -> Room:
    return NOBODY_ELSE


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
    temperature: float | None = None
    """What drafts are drawn at, where they are drawn and the config leaves it open."""
    account: Account = field(default_factory=Account)
    """What the policy has won and lost in this traffic class so far,"""
    together: Account = field(default_factory=Account)
    """and in all classes at the target together, without what those that are tried out now may be
    losing."""
    room: Callable[[Candidate], Room] = _nobody_else
    """Requests that follow a plan at the target now, and how many won by it together: as in the
    figures, but at once."""

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
    context: int = 0
    """Tokens that the next scoring request carries beside the draft."""
    last: tuple[int, int] | None = None
    """(drafted, accepted) of the last round."""
    seconds: float = 0.0
    """Since its first round was begun; 0: not known."""


Figures = Callable[[Candidate], Snapshot]
"""What was measured for a candidate, in the traffic class of the request at hand."""


@runtime_checkable
class Policy(Protocol):
    """Chooses a plan for each request and K for each of its rounds.

    Both are pure: no I/O, no clock; chance comes from ``rng`` alone. A policy of one's own is a
    class with these four, named ``module:Class`` in a config file; the other keys of its table are
    what it is called with.
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


@runtime_checkable
class Accounting(Protocol):
    """A policy that keeps an account of what it has won and lost, one a traffic class."""

    def settle(self, account: Account, plan: Plan, spent: Forecast, plain: Forecast) -> Account:
        """The account after a request that was planned so: what it took, and what a plain call
        would have taken for the same answer."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """A policy that chooses among interchangeable targets."""

    def target(self, forecasts: Sequence[Forecast | None], rng: random.Random) -> int:
        """The place of the one to ask, by forecasts of a plain call to each (``None``: not
        measured), the preferred one's first."""
        ...

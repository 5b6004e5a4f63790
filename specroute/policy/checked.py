"""What a policy answers, checked before anything is done by it.

A policy may be the user's own class, so anything can come back, an exception too. A request is
answered plain then, and the reason says what was wrong; no answer is lost to a policy. Pure but for
what the policy itself does.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from operator import index

from specroute.candidates import Candidates
from specroute.measure import Snapshot
from specroute.policy.base import Ask, Choosing, Figures, Forecast, Plan, Policy, RoundView
from specroute.types import Method

log = logging.getLogger("specroute")

MOST_K = 512
"""The longest draft of a round that any policy gets."""


def checked_plan(
    policy: Policy, ask: Ask, options: Candidates, figures: Figures, rng: random.Random
) -> Plan:
    """The policy's plan, if it is one of ``options``; else plain, with what was wrong as the
    reason."""
    try:
        plan = policy.plan(ask, options, figures, rng)
    except Exception as error:
        log.debug("plan() of %s failed", type(policy).__name__, exc_info=True)
        return _instead(policy, f"plan() raised {type(error).__name__}: {error}")
    wrong = _wrong(plan, options)
    return plan if wrong is None else _instead(policy, wrong)


def checked_k(policy: Policy, view: RoundView, snapshot: Snapshot) -> tuple[int, str]:
    """(K of the next round, what was wrong with the policy's own). K is 0, a plain stream from
    here on, where it is no number of tokens, and ``MOST_K`` at most."""
    try:
        return max(0, min(index(policy.next_k(view, snapshot)), MOST_K)), ""
    except Exception as error:
        log.debug("next_k() of %s failed", type(policy).__name__, exc_info=True)
        said = f"next_k() failed, {type(error).__name__}: {error}"
        return 0, f"the policy {type(policy).__name__}: {said}; the rest is plain"


def checked_target(
    policy: Choosing, forecasts: Sequence[Forecast | None], rng: random.Random
) -> int:
    """The place of the target to ask; the preferred one's where the policy names none."""
    try:
        found = index(policy.target(forecasts, rng))
    except Exception:  # noqa: BLE001 - it may be the user's code.
        return 0
    return found if 0 <= found < len(forecasts) else 0


def _wrong(plan: object, options: Candidates) -> str | None:
    """Why a plan can't be carried out."""
    if not isinstance(plan, Plan):
        return f"plan() gave {plan!r}, not a Plan"
    method: object = plan.method
    if not isinstance(method, Method):
        return f"plan() gave the method {plan.method!r}, not a Method"
    for name in ("k", "lanes", "chunk", "depth", "max_rounds", "tries"):
        value = getattr(plan, name)
        if not isinstance(value, int) or value < 0:
            return f"plan() gave {name} = {value!r}, not a number of 0 or more"
    if any(plan.key == (c.target, c.method, c.drafter) for c in options.plans):
        return None
    with_ = f" with {plan.drafter!r}" if plan.drafter else ""
    at = f" at {plan.target}" if plan.target else ""
    why = options.why_not(plan.method)
    return f"{plan.method}{with_}{at} is none of the options{f' ({why})' if why else ''}"


def _instead(policy: Policy, wrong: str) -> Plan:
    return Plan(Method.PLAIN, None, 0, f"the policy {type(policy).__name__}: {wrong}")

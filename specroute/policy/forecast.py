"""What each method is expected to take, and its best settings: one pure function a method.

A forecaster gets what was measured for a (target, drafter, method, traffic class), what is asked,
and the objective, and gives an :class:`Offer`: the settings with the least J and the whole
request's seconds and dollars at them. ``None`` says that the figures don't suffice yet. It says
nothing of limits, of chance or of trying things out: the planner (``adaptive``) does, by calling
the forecasters with figures drawn from their posteriors. A method that has none is never chosen by
an adaptive policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specroute.measure import Snapshot
from specroute.policy.base import Ask, Forecast
from specroute.policy.objective import Objective
from specroute.types import Method

UNTRIED_DRAFT_S = 0.004
"""Seconds per drafted token assumed before a drafter was ever timed."""
HOPE = 0.85
"""Per-token acceptance assumed where none was measured: optimistic, so that it gets tried."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A method's best settings (named as in :class:`Plan`) and what they are expected to take."""

    forecast: Forecast
    k: int = 0
    lanes: int = 0
    chunk: int = 0
    worth: float = 0.0
    max_rounds: int = 0


Forecaster = Callable[[Snapshot, Ask, Objective], Offer | None]


def plain(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """One call: TTFT + (N - 1)·TPOT seconds; the prompt as input, N tokens of output."""
    pace = figures.pace
    if pace.tpot_s is None:
        return None
    tokens = ask.answer_tokens(figures)
    seconds = (pace.ttft_s or 0.0) + (tokens - 1) * pace.tpot_s
    return Offer(Forecast(seconds, _dollars(figures, ask.context, tokens)))


def score(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """Rounds to the end: N / E(K) of them, each a scoring request and K drafted tokens, with K by
    the marginal rule on the measured survival. Each round is billed prompt, answer so far and
    draft as input, and one token of output."""
    if figures.verify_s is None:
        return None
    tokens = ask.answer_tokens(figures)
    context = ask.context + tokens / 2
    best = best_round(figures, context, objective)
    rounds = tokens / best.tokens
    dollars = _dollars(figures, context * best.prompts + best.k, best.prompts)
    return Offer(
        Forecast(rounds * best.seconds, None if dollars is None else rounds * dollars), best.k
    )


FORECASTS: Mapping[Method, Forecaster] = MappingProxyType(
    {Method.PLAIN: plain, Method.SCORE: score}
)
"""Every method that an adaptive policy may choose."""


@dataclass(frozen=True, slots=True)
class Round:
    """A scoring round at its best K: what it takes and what it commits."""

    k: int
    seconds: float
    tokens: float
    prompts: float = 1.0
    """Whole prompts billed, and output tokens."""


def best_round(
    figures: Snapshot,
    context: float,
    objective: Objective,
    *,
    limit: int | None = None,
    survival: tuple[float, ...] | None = None,
    verify_s: float | None = None,
    draft_s: float | None = None,
) -> Round:
    """The round with the least J per token. ``survival``, ``verify_s``, ``draft_s``: what a request
    has seen for itself, in place of the figures'.

    Token k+1 is worth drafting iff S(k+1)·J > Δseconds + λ·Δdollars, J being that of the k before
    it: S only falls, so the first token that is not worth it ends the search.
    """
    most = objective.max_num_speculative_tokens if limit is None else limit
    if survival is None:
        survival = figures.acceptance.survival(most, default=HOPE)
    if draft_s is None:
        draft_s = figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S
    if verify_s is None:
        verify_s = figures.verify_s or 0.0
    usd_in, usd_out = objective.weigh(figures.usd_in), objective.weigh(figures.usd_out)
    asked = usd_in * context + usd_out
    each = draft_s + (asked if figures.prompt_per_token else usd_in)
    j, tokens, k, reach = verify_s + asked, 1.0, 0, 1.0
    for s in survival[:most]:
        reach = min(s, reach)
        if k and reach * j <= each * tokens:
            break
        j, tokens, k = j + each, tokens + reach, k + 1
    prompts = 1.0 + k if figures.prompt_per_token else 1.0
    return Round(k, verify_s + k * draft_s, tokens, prompts)


def _dollars(figures: Snapshot, prompt: float, output: float) -> float | None:
    if figures.usd_in is None or figures.usd_out is None:
        return None
    return figures.usd_in * prompt + figures.usd_out * output

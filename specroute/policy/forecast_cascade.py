"""What ``cascade`` is expected to take: draft the whole answer, score it once, go on in plain.

Knows the figures of rounds, of which the one over a whole draft is the longest. Weighs nothing: the
planner does.
"""

from __future__ import annotations

from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Ask
from specroute.policy.chance import Drawn, rates
from specroute.policy.forecast import toll_of
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import UNTRIED_DRAFT_S, Offer


def cascade(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """The prompt and N drafted tokens as input and one token of output; then, unless all N are
    kept, the prompt and the kept ones as input again (at the cached price, where there is one) and
    the rest as output.

    Prompt 1000, answer 500, output five times the input's price: .82/.65/.54/.43 of plain for
    50/75/90/100 % kept where cached input costs a tenth, 1.14/1.00/.92/.43 without a cache.
    """
    ttft_s = figures.pace.ttft_s if (ttft := figures.ttft()) is None else ttft.mean
    tpot_s = figures.pace.tpot_s if (tpot := figures.tpot()) is None else tpot.mean
    if tpot_s is None:
        return None
    tokens = ask.answer_tokens(figures)
    n = max(round(tokens), 1)
    kept, whole = keeps(figures.acceptance, n)
    scored = figures.round_time(ask.context, n)
    verify_s = scored.mean if scored is not None else figures.verify_s or ttft_s or 0.0
    draft_s, draft_usd = drafting(figures, ask.context, n)
    left = tokens - kept
    seconds = draft_s + verify_s + (1 - whole) * (ttft_s or 0.0) + left * tpot_s
    taken = toll_of(figures, ask.context)
    lost = taken.round(n) + (1 - whole) * taken.per_prompt + left * taken.per_token
    if figures.usd_in is None or figures.usd_out is None or draft_usd is None:
        return Offer(Forecast(seconds), n, lost=lost)
    again = figures.usd_in if figures.usd_cached is None else figures.usd_cached
    dollars = (
        draft_usd
        + figures.usd_in * (ask.context + n)
        + figures.usd_out
        + (1 - whole) * again * (ask.context + kept)
        + figures.usd_out * left
    )
    return Offer(Forecast(seconds, dollars), n, lost=lost)


def drafting(figures: Snapshot, context: float, n: int) -> tuple[float, float | None]:
    """(seconds, dollars) of a whole draft of ``n`` tokens; ``None``: its price is not known."""
    seconds = n * (figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S)
    usd_in, usd_out = figures.usd_draft_in, figures.usd_draft_out
    if usd_in is None or usd_out is None:
        return seconds, None
    return seconds, usd_in * context + usd_out * n


def keeps(acceptance: Acceptance, n: int) -> tuple[float, float]:
    """(tokens kept of a draft of ``n``, the chance that all are). Positions without evidence share
    one rate, so that what follows them is a geometric sum."""
    z = acceptance.z if isinstance(acceptance, Drawn) else 0.0
    seen = len(acceptance.judged)
    kept, reach, rate = 0.0, 1.0, 1.0
    for i, rate in enumerate(rates(acceptance, z=z)):
        if i >= n:
            return kept, reach
        if i > seen:
            break
        reach *= rate
        kept += reach
    further = n - seen - 1
    if rate >= 1:
        return kept + further * reach, reach
    return kept + reach * rate * (1 - rate**further) / (1 - rate), reach * rate**further

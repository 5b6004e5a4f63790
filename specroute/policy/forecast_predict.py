"""What ``predict`` is expected to take: the whole answer's pace, and the price of what is rejected.

The server verifies, and shows counts alone, so nothing is known of places: the share of predicted
tokens that was accepted, how many were sent, and the pace of predicted answers are measured as they
are.
"""

from __future__ import annotations

import math

from specroute.measure import Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecast import plain, plain_pace, toll_of
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer

HOPE = 0.85
"""The accepted share assumed before any was seen."""
UNTRIED_GAIN = 0.5
"""The pace of a predicted answer against a plain one, assumed before any was seen."""
LONGEST = 8192
"""Tokens of a prediction, where a passage is worth sending whole."""
FREE_S = 0.0002
"""A draft that takes less than this a token is looked up, not generated."""


def predict(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """One call with a prediction. A draft that is looked up costs no time, so it is sent whole
    unless most of it gets rejected; a model's is as long as the answer, and the call waits for it.
    Without prices it can't be weighed what rejected tokens cost: then none (``k = 0``)."""
    alone = plain(figures, ask, objective)
    ttft, tpot = plain_pace(figures)
    if alone is None or tpot is None:
        return None
    usd_out, dollars = figures.usd_out, alone.forecast.dollars
    if usd_out is None or dollars is None:
        return alone
    tokens = ask.answer_tokens(figures)
    seen = figures.predicted
    share = HOPE if seen is None else seen.mean
    k = LONGEST if share >= 0.5 else math.ceil(tokens)
    sent = min(figures.predicted_sent or tokens, k)
    each, waits = figures.draft_s or 0.0, 0.0
    if each > FREE_S:
        k = math.ceil(tokens)
        waits = k * each
    measured = figures.predicted_tpot
    pace = tpot * UNTRIED_GAIN if measured is None else measured.mean
    seconds = (ttft or 0.0) + waits + (tokens - 1) * pace
    cost = dollars + usd_out * (1 - share) * sent
    taken = toll_of(figures, ask.context)
    drafted = taken.per_drafted * k if waits else 0.0
    steps = taken.stream(tokens * pace / tpot) if tpot > 0 else alone.lost
    return Offer(Forecast(seconds, cost), k=k, lost=drafted + steps)

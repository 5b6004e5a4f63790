"""What ``prefix`` is expected to take: how many lanes, how far apart, and which of them pay.

A cycle, in units of TPOT: lanes are started together from a draft; the first stands ``r`` tokens
ahead, where the leading stream is when the lane's first token comes, the others δ apart. If the
draft holds up to lane j, its start plus δ tokens are there after r + δ; if it fails before the
first lane, the stream has run on at its own pace and nothing was lost. A lane costs the prompt and
the answer so far as input, and, where it isn't reached, the δ tokens that it wrote: it is started
where the chance of reaching it is worth that, and no remote one. All of them go at the target's
pace under so much load, and each takes from the other requests there what a plain call does.
"""

from __future__ import annotations

from specroute.measure import Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecast import plain, plain_pace, toll_of
from specroute.policy.objective import Forecast, Objective
from specroute.policy.offer import Offer

SPACINGS = (6, 12, 24, 48)
"""Tokens between lanes that are weighed against each other."""
MOST = 8
"""Lanes at a time."""
HORIZON = 64
"""Tokens of survival that are measured; beyond, the last rate goes on."""
HOPE = 0.97
"""Per-token acceptance assumed where none was measured: lanes need long runs, so that a draft worth
trying at all is taken to have them."""
LEAST_WORTH = 0.1
"""The chance of being reached below which no lane is started, whatever it costs: where calls are
free it is still the server's time, which other streams, this request's own first, are short of."""
LATE = 1.1
"""How much later than the mean a lane's first token is expected."""
SYNC = 2.0
"""Tokens until a draft that failed has found its place again."""


def prefix(figures: Snapshot, ask: Ask, objective: Objective) -> Offer | None:
    """The number and spacing of lanes with the least J. Without prices it can't be weighed what
    further calls cost: then none (``k = 0``)."""
    alone = plain(figures, ask, objective)
    ttft, tpot = plain_pace(figures)
    if alone is None or ttft is None or tpot is None:
        return None
    usd_in, usd_out = figures.usd_prompt, figures.usd_out
    if usd_in is None or usd_out is None or alone.forecast.dollars is None or tpot <= 0:
        return alone
    tokens = ask.answer_tokens(figures)
    context = ask.context + tokens / 2
    first = LATE * ttft / tpot + 1
    survival = _falling(figures.acceptance.survival(HORIZON, default=HOPE))
    reached = _at(survival, first)
    before = sum(survival[: int(first)]) + 1  # tokens until it has failed, or reached a lane
    slow = max(before - first * reached, 0.0) + (1 - reached) * SYNC
    best, least = alone, objective.j(alone.forecast)
    taken = toll_of(figures, context)
    weigh_in, weigh_out = objective.weigh(usd_in) * context, objective.weigh(usd_out)
    for spacing in SPACINGS:
        lost = weigh_out * spacing
        worth = min(max((weigh_in + lost) / (spacing * tpot + lost), LEAST_WORTH), 1.0)
        lanes, gained, prompts, wasted, start = 0, 0.0, 0.0, 0.0, first
        while lanes < MOST and (chance := _at(survival, start)) >= worth:
            lanes += 1
            gained += chance * spacing
            prompts += context + start
            wasted += spacing * (1 - chance)
            start += spacing
        if not lanes:
            continue
        cycles = tokens / (slow + reached * first + gained)
        cycle = slow + reached * (first + spacing)
        loaded = figures.tpot(in_flight=figures.in_flight + lanes)
        each = tpot if loaded is None else max(loaded.mean, tpot)
        seconds = ttft + max(cycles * cycle - 1, 0.0) * each
        dollars = cycles * (usd_in * prompts + usd_out * wasted) + alone.forecast.dollars
        found = Forecast(seconds, dollars)
        if (j := objective.j(found)) < least:
            beside = lanes * taken.per_prompt + wasted * taken.per_token
            taking = alone.lost + cycles * beside
            best = Offer(found, spacing, lanes, chunk=spacing, worth=worth, lost=taking)
            least = j
    return best


def _falling(survival: tuple[float, ...]) -> list[float]:
    found: list[float] = []
    for s in survival:
        found.append(min(s, found[-1]) if found else min(s, 1.0))
    return found


def _at(survival: list[float], k: float) -> float:
    """S(k), beyond the horizon by the mean rate of its second half."""
    at = int(k)
    if at < 1:
        return 1.0
    if at <= len(survival):
        return survival[at - 1]
    last, half = survival[-1], survival[len(survival) // 2 - 1]
    if half <= 0:
        return 0.0
    rate = (last / half) ** (1 / (len(survival) - len(survival) // 2))
    return float(last * rate ** (at - len(survival)))

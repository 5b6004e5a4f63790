"""Rejection sampling with p known in full, and the greedy rule as its special case (rules 1 and 5).

Leviathan et al. (arXiv 2211.17192, theorem in appendix A.1) and Chen et al. (arXiv 2302.01318),
unchanged. Knows p, the draft's q and a coin; deliberately not where they came from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from specroute.acceptance.outcome import Outcome


class Distribution(Protocol):
    """``q[token_id]`` is the probability of that id, 0 if it has none."""

    def __getitem__(self, token_id: int, /) -> float: ...


def draw(p: Mapping[int, float], coin: float) -> int:
    """The token at ``coin`` (uniform in [0, 1)) on p's cumulative distribution."""
    last = None
    for token, probability in p.items():
        if probability <= 0:
            continue
        coin -= probability
        last = token
        if coin < 0:
            break
    if last is None:
        raise ValueError("an empty distribution has nothing to draw from")
    return last


def judge(x: int, p: Mapping[int, float], q: Distribution | None, coin: float) -> int:
    """Judge one drafted token: the token to commit, ``x`` iff the draft is accepted.

    Accept with probability min(1, p(x)/q(x)), else commit a draw from the residual
    norm(max(0, p - q)) (arXiv 2211.17192, eq. 1 and algorithm 1; arXiv 2302.01318). x is never in
    that residual, because a rejection means p(x) < q(x). The committed token is distributed as p
    exactly, whatever q is, provided x was drawn from q and nothing else looked at x first.

    ``q is None`` means a point mass on x (greedy, n-gram and text drafts): accept with p(x), else
    draw from p without x. ``coin`` is this position's one uniform number in [0, 1): it decides
    acceptance and, rescaled, the residual draw, so that judging a position again with its coin
    gives the same answer.
    """
    px = p.get(x, 0.0)
    qx = 1.0 if q is None else q[x]
    if qx <= 0:
        raise ValueError(f"token {x} was drafted but its draft probability is {qx!r}")
    accept = px / qx
    if coin < accept:
        return x
    if q is None:
        residual = {v: pv for v, pv in p.items() if v != x}
    else:
        residual = {v: pv - q[v] for v, pv in p.items() if v != x and pv > q[v]}
    total = math.fsum(residual.values())
    if total <= 0:  # p = q up to rounding
        return x
    return draw(residual, (coin - accept) / (1 - accept) * total)


def verify(
    drafted: Sequence[int],
    positions: Sequence[Mapping[int, float] | None],
    q: Sequence[Distribution] | None,
    rng: random.Random,
) -> Outcome:
    """Judge a draft from left to right, one coin a position, to the first rejection.

    ``positions[i]`` is p given everything before ``drafted[i]`` (from :func:`visible`), or
    ``None`` where it could not be seen: judging stops *before* such a position, with nothing
    decided about it, so the target may go on from there by any exact means. A rejection is always
    finished here: its recovered token is drawn. Positions that are missing at the end are unseen.

    Exact for every sampling setting under which :func:`visible` gives p; with point masses it is
    greedy verification, and the outcome doesn't depend on the coins.
    """
    for i, x in enumerate(drafted):
        p = positions[i] if i < len(positions) else None
        if p is None:
            return Outcome(i, None, "unseen")
        token = judge(x, p, None if q is None else q[i], rng.random())
        if token != x:
            return Outcome(i, token, "rejected")
    return Outcome(len(drafted), None, "all")

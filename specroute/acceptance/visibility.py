"""The whole of p, where the top N show it: rule 5's evidence, and the argmax of rule 1.

Knows how servers turn raw logprobs into the distribution they sample from (temperature, top_k,
top_p, min_p) and where two correct servers may differ. Deliberately knows no draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specroute.acceptance.logprobs import VOCABULARY_BOUND, checked
from specroute.acceptance.sampling import Sampling

CLOSE = 1e-5
"""Relative distance within which a server's float32 arithmetic may fall on either side of a cut."""
NEGLIGIBLE = 1e-6
"""Hidden mass (after temperature) below what a float32 softmax resolves."""


def visible(
    top: Sequence[tuple[int, float]], sampling: Sampling, n: int | None = None
) -> dict[int, float] | None:
    """The full distribution p that the server samples from, if its raw top N shows all of it.

    ``top`` holds (id, raw logprob: before temperature and truncation), in any order. Servers may
    append the drafted token when it is outside the top N: ``n`` is the N that was asked for, and
    only the n highest count, so that whether a position is seen never depends on which token was
    drafted (that would bias the output). At T = 0 the result is a point mass on the argmax; of
    equal logprobs the lowest id, as ``argmax`` does in servers.

    Returns p, most likely first, or ``None`` if a token that may matter is hidden, or if a cut
    falls where two correct servers may differ: a cumulative mass equal to ``top_p`` within
    float32, or a tie at the edge of the nucleus or of top_k (vLLM keeps all tied ones, others
    exactly k). With ``top_k == N`` a tie beyond N can be hidden, so ask for N > top_k where the
    server allows it.

    Hidden mass t at temperature T holds, after the transform, at most t·p_(N)^(1/T-1) for T <= 1,
    and V^(1-1/T)·t^(1/T) for T > 1 (V bounds the vocabulary): the nucleus is certain iff it is
    the same at both ends of that range.

    Raises ``ValueError`` for what can't be top logprobs: empty, NaN, positive, summing above 1, an
    id twice, probability 0 listed while mass is missing. The caller then refuses the evidence.
    """
    logprobs, tail = checked(top, n)
    best_id, best = logprobs[0]
    if sampling.greedy:
        return {best_id: 1.0}
    heat = 1.0 / sampling.temperature
    weights = [math.exp((value - best) * heat) for _, value in logprobs]
    last = logprobs[-1][1]
    if tail == 0.0:
        hidden = (0.0, 0.0)
    elif sampling.temperature == 1:
        mass = tail * math.exp(-best)
        hidden = (mass, mass)
    elif sampling.temperature < 1:
        hidden = (0.0, tail * math.exp(last * (heat - 1) - best * heat))
    else:
        hidden = (0.0, VOCABULARY_BOUND ** (1 - heat) * (tail * math.exp(-best)) ** heat)
    may_tie = tail > 0 and tail * (1 + CLOSE) >= math.exp(last)
    view = _View(weights, hidden, may_tie)
    size = _kept(view, sampling)
    if size is None:
        return None
    total = math.fsum(weights[:size])
    return {logprobs[i][0]: weights[i] / total for i in range(size)}


@dataclass(frozen=True, slots=True)
class _View:
    """Weights after temperature (the highest is 1), and the range of the hidden weight."""

    weights: Sequence[float]
    hidden: tuple[float, float]
    may_tie: bool
    """A hidden token may be as likely as the last visible one."""


def _kept(view: _View, sampling: Sampling) -> int | None:
    """How many of the ranked tokens the server keeps; ``None`` if that is uncertain."""
    last_cut = _top_p(_top_k(view, sampling.top_k), sampling.top_p)
    if not sampling.min_p:
        return _certain(last_cut)
    first = _certain(_top_p(_top_k(_min_p(view, sampling.min_p), sampling.top_k), sampling.top_p))
    after = _certain(_min_p(last_cut, sampling.min_p)) if last_cut else None
    return first if first == after else None


def _certain(view: _View | None) -> int | None:
    if view is None or view.hidden[1] > NEGLIGIBLE * math.fsum(view.weights):
        return None
    return len(view.weights)


def _min_p(view: _View | None, min_p: float) -> _View | None:
    """Keep w >= min_p · max w."""
    if view is None or any(abs(w - min_p) <= CLOSE * min_p for w in view.weights[1:]):
        return None
    kept = [w for w in view.weights if w >= min_p]
    if len(kept) < len(view.weights):
        return _View(kept, (0.0, 0.0), False)
    return _View(kept, (0.0, view.hidden[1]), view.may_tie)


def _top_k(view: _View | None, k: int) -> _View | None:
    """Keep the k highest; tokens tied with the k-th may be kept too, so they become 'hidden'."""
    if view is None or k <= 0:
        return view
    weights, most = view.weights, view.hidden[1]
    if k > len(weights):
        return _View(weights, (0.0, min(most, (k - len(weights)) * weights[-1])), view.may_tie)
    edge = weights[k - 1]
    kept = weights[:k]
    tied = math.fsum(w for w in weights[k:] if w >= edge * (1 - CLOSE))
    reaches_end = weights[-1] >= edge * (1 - CLOSE)
    beyond = most if reaches_end and view.may_tie else 0.0
    return _View(kept, (0.0, tied + beyond), tied + beyond > 0)


def _top_p(view: _View | None, top_p: float) -> _View | None:
    """Keep the fewest tokens whose cumulative share reaches top_p (at least one)."""
    if view is None or top_p >= 1:
        return view
    weights, (low, high) = view.weights, view.hidden
    seen = math.fsum(weights)
    reach_low, reach_high = top_p * (seen + low), top_p * (seen + high)
    total = 0.0
    for size, weight in enumerate(weights, 1):
        if size > 1 and total >= reach_low * (1 - CLOSE):
            return None  # at one end of the range the nucleus ended before this token
        total += weight
        if total >= reach_high * (1 + CLOSE) or (size == 1 and top_p == 0):
            following = weights[size] if size < len(weights) else weight * view.may_tie
            if following >= weight * (1 - CLOSE):
                return None
            return _View(weights[:size], (0.0, 0.0), False)
    # All visible tokens together fall short of top_p, or too close to call.
    if high == 0 and not view.may_tie:
        return view if total > reach_high else None
    return None

"""Which drafted tokens stand: the acceptance rules, as pure functions.

Knows the target's distribution p (from the top-N logprobs a server shows), the draft's q, and a
source of randomness that is passed in. Deliberately knows nothing of servers, dialects, texts or
drafters: evidence that doesn't parse was refused before it came here.

Rules of this version:

- greedy (T = 0): the target's argmax decides, ``logprobs=1`` is enough;
- everything visible: where ``top_k``, ``top_p`` or ``min_p`` leave only tokens inside the visible
  top N, p is known in full, and the rejection sampling of Leviathan et al. (arXiv 2211.17192,
  theorem in appendix A.1) and Chen et al. (arXiv 2302.01318) applies unchanged;
- match: the server's own draws decide (exact whatever p is), see :func:`match`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

GREEDY_BELOW = 1e-5
"""Servers (vLLM's ``_SAMPLING_EPS``) treat temperatures below this as 0."""
CLOSE = 1e-5
"""Relative distance within which a server's float32 arithmetic may fall on either side of a cut."""
NEGLIGIBLE = 1e-6
"""Hidden mass (after temperature) below what a float32 softmax resolves."""
VOCABULARY_BOUND = 2**19
"""No vocabulary is larger; bounds the mass a flattened (T > 1) tail can hold."""


class Distribution(Protocol):
    """``q[token_id]`` is the probability of that id, 0 if it has none."""

    def __getitem__(self, token_id: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target samples this request.

    Order: temperature, then top_k, then top_p over what top_k left (renormalised), as vLLM and
    transformers do. ``min_p`` comes before top_k in vLLM V1 and last in transformers; where the
    two orders differ, :func:`visible` answers "unseen".
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or less: off."""
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature!r}, expected a number >= 0")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}, expected 0 to 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p!r}, expected 0 to 1")

    @property
    def greedy(self) -> bool:
        """Whether the target takes its argmax."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a draft.

    ``accepted`` drafted tokens stand. ``token`` is the one that follows them, where it is known:
    the recovered token after a rejection, or the bonus token in :func:`match`. ``verdict`` is
    ``rejected`` (the next drafted token was judged and refused), ``all`` (every one was accepted)
    or ``unseen`` (the next one could not be judged; nothing about it has been decided).
    """

    accepted: int
    token: int | None
    verdict: Literal["rejected", "all", "unseen"]


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
    logprobs, tail = _checked(top, n)
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


def _checked(
    top: Sequence[tuple[int, float]], n: int | None
) -> tuple[list[tuple[int, float]], float]:
    """The n highest with probability > 0, most likely first, and the mass that is hidden."""
    if not top:
        raise ValueError("no logprobs at this position")
    if len({token for token, _ in top}) != len(top):
        raise ValueError("the same token id twice among the top logprobs")
    for token, value in top:
        if math.isnan(value) or value > 1e-4:
            raise ValueError(f"logprob of token {token} is {value!r}, expected <= 0")
    ranked = sorted(top, key=lambda entry: (-entry[1], entry[0]))[:n]
    possible = [entry for entry in ranked if math.exp(entry[1]) > 0.0]
    mass = math.fsum(math.exp(value) for _, value in possible)
    if mass > 1 + 1e-3:
        raise ValueError(f"the top logprobs sum to a probability of {mass:.4f}, expected <= 1")
    if not possible:
        raise ValueError("every top logprob says probability 0")
    tail = max(0.0, 1.0 - mass)
    if len(possible) < len(ranked):  # what is hidden is no likelier than what is listed with 0
        if tail > 1e-3:
            raise ValueError(f"probability 0 is listed while {tail:.4f} of the mass is missing")
        tail = 0.0
    return possible, tail if tail > 1e-12 else 0.0


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


def match(drafted: Sequence[int], sampled: Sequence[int]) -> Outcome:
    """Sample-and-match: the server drew ``sampled[i]`` after ``drafted[:i]``; commit what it drew.

    A draft is accepted iff the server drew the same token. Exact whatever p and the draft are,
    since every committed token is the server's own; draft greedily for it, because a drawn draft
    matches with probability Σ p·q only. With one more sample than drafts, a full match brings the
    bonus token.
    """
    for i, x in enumerate(drafted):
        if i >= len(sampled):
            return Outcome(i, None, "unseen")
        if sampled[i] != x:
            return Outcome(i, sampled[i], "rejected")
    k = len(drafted)
    return Outcome(k, sampled[k] if len(sampled) > k else None, "all")

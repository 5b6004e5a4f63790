"""The physics: what a round of each method costs, what it commits, and the best K.

Knows seconds, tokens and prices, all passed in. Deliberately knows nothing of where they were
measured, of servers or of which plan a policy prefers. Survival ``S`` is a sequence: ``S[j-1]`` is
the probability that at least j drafted tokens are accepted; past its end it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# --- what a round commits --------------------------------------------------------------------


def expected_tokens(alpha: float, k: int) -> float:
    """E(K) = (1 - α^(K+1)) / (1 - α): tokens a round commits, the target's own token included.

    Equation 1 of Leviathan et al. (arXiv 2211.17192), for independent acceptance α per token. For
    predictions use :func:`expected_from_survival`: real acceptance isn't geometric.
    """
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError(f"alpha={alpha!r}, k={k!r}: expected 0 <= alpha <= 1 and k >= 0")
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def geometric_survival(alpha: float, k: int) -> tuple[float, ...]:
    """S(j) = α^j for j = 1..k."""
    return tuple(alpha**j for j in range(1, k + 1))


def expected_from_survival(survival: Sequence[float], k: int) -> float:
    """1 + Σ_{j<=k} S(j): tokens a round of k drafted tokens commits."""
    return 1.0 + math.fsum(survival[:k])


# --- what it costs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast target and draft are, in seconds."""

    tpot: float
    """The target's time per output token."""
    r: float = 0.0
    """R, the fixed cost of one more request: round trip, HTTP, queue, re-prefill."""
    t_verify: float | None = None
    """Scoring forward and one generated token; ``None``: one TPOT."""
    d: float = 0.0
    """The draft's time per token."""
    verify_per_token: float = 0.0
    """What scoring takes longer for each drafted token."""
    ttft: float | None = None
    """Plain time to the first token; ``None``: R + TPOT."""

    @property
    def verify(self) -> float:
        """``t_verify`` with its default."""
        return self.tpot if self.t_verify is None else self.t_verify

    @property
    def first(self) -> float:
        """``ttft`` with its default."""
        return self.r + self.tpot if self.ttft is None else self.ttft


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per token."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    """Of a prompt token read from the server's cache; ``None``: as ``input``."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected seconds, committed tokens and billed tokens of a call, a round or an answer."""

    seconds: float
    tokens: float
    """Tokens committed."""
    prompt: float = 0.0
    """Prompt tokens billed, cached ones included."""
    cached: float = 0.0
    completion: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )

    def dollars(self, prices: Prices) -> float:
        """What the billed tokens cost."""
        cached = prices.input if prices.cached is None else prices.cached
        fresh = (self.prompt - self.cached) * prices.input
        return fresh + self.cached * cached + self.completion * prices.output

    def j(self, prices: Prices = Prices(), lam: float = 0.0) -> float:
        """J = seconds + λ·dollars, with λ = 1 / ``usd_per_second``."""
        return self.seconds + (lam * self.dollars(prices) if lam else 0.0)

    def j_per_token(self, prices: Prices = Prices(), lam: float = 0.0) -> float:
        """J per committed token: what plans are compared by."""
        return self.j(prices, lam) / self.tokens


def plain(context: float, tokens: float, pace: Pace, cache_hit: float = 0.0) -> Cost:
    """One plain call: ``tokens`` tokens after ``context`` prompt tokens."""
    if tokens <= 0:
        return Cost(0.0, 0.0)
    seconds = pace.first + (tokens - 1) * pace.tpot
    return Cost(seconds, tokens, context, cache_hit * context, tokens)


def score(
    context: float,
    k: int,
    survival: Sequence[float],
    pace: Pace,
    cache_hit: float = 0.0,
    generated: int = 1,
) -> Cost:
    """One scoring round of k drafted tokens: R + t_verify + k·d seconds, E tokens.

    The server bills the whole context and the draft as input, and ``generated`` output tokens.
    ``cache_hit`` is the share of the context read from its cache (0 on servers whose prompt
    logprobs bypass it).
    """
    seconds = pace.r + pace.verify + k * (pace.d + pace.verify_per_token)
    tokens = expected_from_survival(survival, k)
    return Cost(seconds, tokens, context + k, cache_hit * context, generated)


def score_answer(
    context: float,
    tokens: float,
    k: int,
    survival: Sequence[float],
    pace: Pace,
    cache_hit: float = 0.0,
) -> Cost:
    """A whole answer of ``tokens`` tokens by scoring rounds: tokens / E of them."""
    one = score(context + tokens / 2, k, survival, pace, cache_hit)
    rounds = tokens / one.tokens
    return Cost(
        rounds * one.seconds,
        tokens,
        rounds * one.prompt,
        rounds * one.cached,
        rounds * one.completion,
    )


def prefix(
    context: float,
    chunk: int,
    lanes: int,
    survival: Sequence[float],
    pace: Pace,
    cache_hit: float = 0.0,
) -> Cost:
    """One wave of prefix lanes: ``lanes`` streams started beside a running plain one.

    Lane i starts after i drafted chunks. After R + chunk·TPOT every lane has written its chunk: if
    the first j chunks match, (j+1)·chunk tokens stand, and never fewer than the plain stream has
    written meanwhile. Billed as if losing lanes were cancelled only at the wave's end, which is
    the worst case; the drafting itself runs beside the stream and costs no time.
    """
    if chunk < 1 or lanes < 0:
        raise ValueError(f"chunk={chunk!r}, lanes={lanes!r}: expected chunk >= 1 and lanes >= 0")
    seconds = pace.r + chunk * pace.tpot
    streamed = seconds / pace.tpot
    reach = [1.0, *(_at(survival, j * chunk) for j in range(1, lanes + 1)), 0.0]
    tokens = math.fsum(
        (reach[j] - reach[j + 1]) * max((j + 1) * chunk, streamed) for j in range(lanes + 1)
    )
    prompt = math.fsum(context + j * chunk for j in range(1, lanes + 1))
    return Cost(seconds, tokens, prompt, cache_hit * lanes * context, streamed + lanes * chunk)


def _at(survival: Sequence[float], j: int) -> float:
    return survival[j - 1] if j <= len(survival) else 0.0


# --- what pays -------------------------------------------------------------------------------


def speedup(survival: Sequence[float], k: int, pace: Pace) -> float:
    """TPOT · E / round: how many times faster than plain sequential scoring streams."""
    return pace.tpot / score(0, k, survival, pace).j_per_token()


def pipelined_bound(alpha: float, pace: Pace, h: float = 0.0) -> float:
    """TPOT / (d + (1-α)(1-h)(R + TPOT)): the limit with rounds kept in flight.

    h is the chance that the correction was drafted ahead of the rejection.
    """
    return pace.tpot / (pace.d + (1 - alpha) * (1 - h) * (pace.r + pace.tpot))


@dataclass(frozen=True, slots=True)
class Best:
    """The best K of a method, and J per token at it. ``k = 0``: don't speculate."""

    k: int
    j: float


def best_k(
    survival: Sequence[float], fixed: float, marginal: float, plain_j: float = math.inf
) -> Best:
    """The K that minimises J per committed token, or 0 where plain is no dearer.

    A round's J is ``fixed + K·marginal`` (seconds + λ·dollars; see :func:`score_marginal`). Token
    k+1 is worth drafting iff S(k+1)·J* > Δseconds + λ·Δdollars, J* being the best J per token: a
    fixed point, reached by Dinkelbach's iteration in a few steps. ``plain_j`` is plain's J per
    token; a K is returned only if it beats that.
    """
    falling: list[float] = []
    for s in survival:  # survival can't rise; estimates of it can
        falling.append(min(s, falling[-1]) if falling else min(s, 1.0))
    k, j = 0, fixed
    while True:
        grown = sum(1 for s in falling if s * j > marginal)
        better = (fixed + grown * marginal) / expected_from_survival(falling, grown)
        if better >= j:
            break
        k, j = grown, better
    return Best(k, j) if k and j < plain_j else Best(0, plain_j)


def score_marginal(pace: Pace, prices: Prices = Prices(), lam: float = 0.0) -> float:
    """Δseconds + λ·Δdollars of one more drafted token in a scoring round: it is billed as input."""
    return pace.d + pace.verify_per_token + lam * prices.input


def best_score(
    survival: Sequence[float],
    pace: Pace,
    context: float = 0.0,
    prices: Prices = Prices(),
    lam: float = 0.0,
    cache_hit: float = 0.0,
) -> Best:
    """:func:`best_k` for scoring rounds after ``context`` tokens, against plain's TPOT."""
    fixed = score(context, 0, (), pace, cache_hit).j(prices, lam)
    plain_j = pace.tpot + lam * prices.output
    return best_k(survival, fixed, score_marginal(pace, prices, lam), plain_j)

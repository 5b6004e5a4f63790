"""A scripted target and its drafts, to run acceptance rules on by the hundred thousand.

24 tokens; the distribution depends on the previous token. Two-token answers by rounds of K = 2. Knows
what the answers' distribution should be and how far plain sampling strays from it; knows no rule.
"""

import math
import random
from bisect import bisect
from collections import Counter
from functools import cache
from itertools import accumulate

import numpy as np

from specroute.acceptance import Draw, Drawn, Evidence, Sampling, TailDraw
from tests.support.distribution import pairs, second, total_variation, tv_quantile

V, ANSWERS = 24, 100_000


@cache
def raw(context: int, sharpness: float = 1.4, seed: int = 7) -> tuple[float, ...]:
    """The target's raw distribution after ``context``."""
    rng = random.Random(seed * 1000 + context)
    weights = [math.exp(rng.gauss(0, sharpness)) for _ in range(V)]
    return tuple(w / sum(weights) for w in weights)


def transformed(full, sampling: Sampling) -> dict[int, float]:
    """What a server makes of a full distribution: temperature, top_k, top_p, min_p."""
    heated = [(i, p ** (1 / sampling.temperature)) for i, p in full]
    heated.sort(key=lambda entry: (-entry[1], entry[0]))
    if sampling.top_k:
        heated = heated[: sampling.top_k]
    total, before, kept = sum(w for _, w in heated), 0.0, []
    for i, w in heated:
        if kept and before >= sampling.top_p * total:
            break
        kept.append((i, w))
        before += w
    kept = [(i, w) for i, w in kept if w >= sampling.min_p * kept[0][1]]
    total = sum(w for _, w in kept)
    return {i: w / total for i, w in kept}


def good(context: int) -> dict[int, float]:
    """Close to the target's raw distribution."""
    other = raw(context, seed=8)
    return {i: 0.8 * a + 0.2 * b for i, (a, b) in enumerate(zip(raw(context), other, strict=True))}


def bad(context: int) -> dict[int, float]:
    """Unrelated to the target."""
    return dict(enumerate(raw(context, sharpness=2.0, seed=9)))


def adversarial(context: int) -> dict[int, float]:
    """Mass where the target has least, and none on its favourite."""
    inverse = [1 / p for p in raw(context)]
    inverse[max(range(V), key=raw(context).__getitem__)] = 0.0
    return {i: w / sum(inverse) for i, w in enumerate(inverse)}


def greedy(context: int) -> dict[int, float]:
    """Always the target's third choice: a deterministic draft."""
    return {sorted(range(V), key=raw(context).__getitem__)[-3]: 1.0}


def unlikely(context: int) -> dict[int, float]:
    """Always a token of the tail: a deterministic draft."""
    return {sorted(range(V), key=raw(context).__getitem__)[8]: 1.0}


DETERMINISTIC = (greedy, unlikely)


def stream(p, rng: np.random.Generator):
    """Endless independent draws from p."""
    ids, ladder = np.array(list(p)), np.cumsum(list(p.values()))
    while True:
        yield from ids[
            np.searchsorted(ladder, rng.random(2000) * ladder[-1], side="right")
        ].tolist()


class Target:
    """The server: what it samples under ``sampling``, and its answers to a rule's requests."""

    def __init__(self, sampling: Sampling, n: int = V, seed: int = 1) -> None:
        self.sampling, self.n = sampling, n
        self.rng = np.random.default_rng(seed)
        self.p = {c: transformed(list(enumerate(raw(c))), sampling) for c in range(V)}
        self.own = {c: stream(self.p[c], self.rng) for c in range(V)}
        self.tails = {}
        self.seen = {}
        self.drawn = [
            [Drawn(v, math.log(pv)) for v, pv in enumerate(raw(c))] for c in range(V)
        ]  # fmt: skip
        self.requests = Counter()

    def evidence(self, context: int, x: int) -> Evidence:
        """The raw top n at ``context``, the drafted token appended as servers do."""
        found = self.seen.get((context, x))
        if found is None:
            logs = [(v, drawn.logprob) for v, drawn in enumerate(self.drawn[context])]
            logs.sort(key=lambda entry: -entry[1])
            top = [e for i, e in enumerate(logs) if i < self.n or (e[0] == x and self.n)]
            found = Evidence.of(top, self.drawn[context][x].logprob, self.sampling, self.n or None)
            self.seen[context, x] = found
        return found

    def answer(self, request, context: int) -> list[Drawn]:
        """What the server draws when it is asked."""
        self.requests[type(request)] += 1
        if isinstance(request, Draw):
            own, drawn = self.own[context], self.drawn[context]
            return [drawn[next(own)] for _ in range(request.count)]
        assert isinstance(request, TailDraw)
        key = context, request.banned
        if key not in self.tails:
            left = {v: pv for v, pv in enumerate(raw(context)) if v not in request.banned}
            self.tails[key] = stream(left, self.rng)
        return [self.drawn[context][next(self.tails[key])]]


def answers(target: Target, draft, check, seed: int = 1, n: int = ANSWERS):
    """Two-token answers by rounds of draft and ``check(drafted, contexts, q, rng) -> Outcome``, from
    context 0. Where nothing is decided the target goes on by itself."""
    source, rng = np.random.default_rng(1000 + seed), random.Random(seed)
    q = {c: draft(c) for c in range(V)}
    drafts = {c: stream(q[c], source) for c in range(V)}
    point = draft in DETERMINISTIC
    for _ in range(n):
        out, context = [], 0
        while len(out) < 2:
            x = next(drafts[context])
            if out:  # one more token is all that is looked at
                drafted, contexts, qs = [x], (context,), (q[context],)
            else:
                drafted, contexts, qs = [x, next(drafts[x])], (context, x), (q[context], q[x])
            outcome = check(drafted, contexts, None if point else qs, rng)
            out += drafted[: outcome.accepted]
            if outcome.token is not None:
                out.append(outcome.token)
            elif outcome.verdict == "unseen":
                out.append(next(target.own[out[-1] if out else 0]))
            context = out[-1]
        yield out[0], out[1]


@cache
def bounds(sampling: Sampling):
    """What first token, second token and pair should be, and how far plain sampling strays."""
    p = Target(sampling).p
    expected = (p[0], second(p[0], p), pairs(p[0], p))
    return [(e, tv_quantile(e, ANSWERS, reps=2000)) for e in expected]


def excess(results, sampling: Sampling) -> float:
    """The largest of TV / 99.9 % quantile over first token, second token and pair."""
    counts = Counter(results)
    first, later = Counter(), Counter()
    for (a, b), c in counts.items():
        first[a] += c
        later[b] += c
    assert counts.total() == ANSWERS
    return max(
        total_variation(seen, expected) / quantile
        for seen, (expected, quantile) in zip((first, later, counts), bounds(sampling), strict=True)
    )


def quantile_draw(p, u: float) -> int:
    """The token at quantile u: how a server with a fixed seed draws."""
    ladder = list(accumulate(p.values()))
    return list(p)[min(bisect(ladder, u), len(ladder) - 1)]

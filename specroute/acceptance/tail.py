"""Rejection sampling where a tail is hidden: rules 2, 4 and 6, one procedure.

Knows the envelope of p (:mod:`specroute.acceptance.envelope`), the raw logprob of the drafted token
and the draft's q; asks for draws from the tail. Deliberately knows no server.

**The extended alphabet.** Rule 6 samples p_T(v) = p_v^(1/T)/Z by proposals: a visible id i with
probability p_i^(1/T)/E; or, with probability t·p_(N)^(1/T-1)/E, a draw v of the target's from its
tail at T = 1, kept with probability (p_v/p_(N))^(1/T-1), else *again*. So one proposal is a draw
from

    p̃(v) = p_v^(1/T) / E  for every token v,        p̃(again) = 1 - Z/E,

and p_T is p̃ given that it isn't *again*. p̃(v) is known for every token whose raw logprob is known,
the drafted one included; Z is not, and isn't needed: speculate on p̃, with q(again) = 0. By the
theorem of Leviathan et al. (arXiv 2211.17192, appendix A.1), accepting x ~ q with
min(1, p̃(x)/q(x)), else drawing from norm(max(0, p̃ - q)), gives a draw from p̃. If that is *again*,
the position starts over, independently of x: a draw of the server's own from p_T ends it. What is
committed is p_T in either case. Accepted is Σ min(q, p̃): at T = 1 what full knowledge of p accepts,
at T < 1 at least Z/E of that.

**The residual**, too, is drawn without its normaliser, by rejection from a known envelope: a
visible id with weight max(0, p̃ - q); or, with weight t·p_(N)^(1/T-1)/E, a draw v from the tail,
which is *again* with probability 1 - (p_v/p_(N))^(1/T-1) (its whole residual, as q(again) = 0), and
else, having arrived with weight p̃(v), is kept with probability max(0, 1 - q(v)/p̃(v)); a v that is
not kept sends the residual back to its start. That takes t'/R draws from the tail for one rejection
on average, where t' is the tail's weight and R = 1 - Σ min(q, p̃) the mass of the residual.

**Rule 4** is T = 1: p̃ = p and there is no *again*. **Rule 2** is T = 1 with nothing visible: v is
drawn from p and kept with probability max(0, 1 - q(v)/p(v)), 1/R draws a rejection, 1 a position.

**Point masses.** A greedy, n-gram or text-only draft has q(x) = 1, and any procedure that commits
p_T *given x* is exact; so x counts as visible: its weight leaves the tail, it is banned from draws,
and E shrinks to E - p_x·p_(N)^(1/T-1) + p_x^(1/T) where it was hidden. With a drawn x that would be
wrong: the envelope would depend on which token was drafted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence

from specroute.acceptance.envelope import Envelope
from specroute.acceptance.rejection import Distribution, draw
from specroute.acceptance.requests import Asking, Draw, Drawn, Request, TailDraw, first

NEVER = 1e-9
"""A chance that no honest server meets."""


def judge_hidden(
    position: int,
    x: int,
    logprob: float,
    seen: Envelope,
    q: Distribution | None,
    rng: random.Random,
    *,
    biased: bool,
    batch: int = 4,
) -> Asking:
    """Judge one drafted token x with raw ``logprob``; returns the token to commit.

    ``biased``: the server takes ``logit_bias``, so the tail is asked for alone. Without it draws
    come from the whole of p, ``batch`` at a time (T = 1 only), and the banned ones are discarded.
    One uniform number decides acceptance and the residual's first step; only draws from the tail
    take more.
    """
    coin = rng.random()
    share, visible, hidden = seen.share(logprob), seen.visible, seen.hidden
    if q is None:
        accept = share
        if x not in visible:
            claimed = min(hidden, seen.claimed(logprob))
            hidden -= claimed
            accept /= 1 - claimed + share
    else:
        qx = q[x]
        if qx <= 0:
            raise ValueError(f"token {x} was drafted but its draft probability is {qx!r}")
        accept = share / qx
    if coin < accept:
        return x
    if q is None:
        banned = seen.ids if x in visible else (*seen.ids, x)
        residual = {v: pv for v, pv in visible.items() if v != x}
    else:
        banned = seen.ids
        residual = {v: pv - q[v] for v, pv in visible.items() if v != x and pv > q[v]}
    shown = math.fsum(residual.values())
    total = shown + hidden
    if total <= 0:  # p = q up to rounding
        return x
    spot = (coin - accept) / (1 - accept) * total
    ready: list[Drawn] = []
    last, repeats = None, 0.0
    if biased and banned:
        request: Request = TailDraw(position, banned, bool(seen.power) or q is not None)
    else:
        request = Draw(position, batch, q is not None, mid_rejection=True)
    while hidden > 0 and spot >= shown:
        if not ready:
            claimed = seen.mass() + (math.exp(logprob) if x not in visible and q is None else 0.0)
            ready = yield from _not_banned(request, banned, claimed)
        drawn = ready.pop(0)
        if seen.power and rng.random() >= seen.kept(_raw(drawn)):
            return first((yield Draw(position))).token  # again
        if q is None or rng.random() * seen.share(_raw(drawn)) >= q[drawn.token]:
            return drawn.token
        if drawn.token != last:
            last, repeats = drawn.token, 0.0
        others = seen.mass() if isinstance(request, TailDraw) else 0.0
        repeats += min(_raw(drawn) - math.log(max(1 - others, 1e-9)), 0.0)
        if repeats < math.log(NEVER):
            raise ValueError(
                f"token {last} was drawn over and over, of probability {math.exp(_raw(drawn)):.4f} "
                "by the target's own account"
            )
        spot = rng.random() * total
    return draw(residual, spot)


def _not_banned(
    request: Request, banned: tuple[int, ...], claimed: float
) -> Generator[Request, Sequence[Drawn], list[Drawn]]:
    """The draws that a request brings, asked for again until one is not banned.

    ``claimed``: the probability of the banned ones by the target's own evidence. A server that
    draws nothing else for longer than that allows draws otherwise than it says (greedily, or always
    with one seed): ``ValueError``.
    """
    drawn, most = 0, math.log(NEVER) / math.log(min(claimed, 1 - 1e-9)) if claimed > 0 else 0.0
    while True:
        answer = yield request
        first(answer)
        allowed = [drawn for drawn in answer if drawn.token not in banned]
        if allowed:
            return allowed
        drawn += len(answer)
        if drawn > most:
            raise ValueError(
                f"{drawn} draws in a row gave nothing but tokens whose probability is "
                f"{claimed:.4f} by the target's own account"
            )


def _raw(drawn: Drawn) -> float:
    if drawn.logprob is None or math.isnan(drawn.logprob) or drawn.logprob > 1e-4:
        raise ValueError(f"token {drawn.token} was drawn with the logprob {drawn.logprob!r}")
    return drawn.logprob

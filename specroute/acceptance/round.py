"""A draft judged from left to right, each position by the strongest rule it allows.

Knows the rules and their order; asks the target through :mod:`specroute.acceptance.requests` and
deliberately doesn't know how it is reached.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from specroute.acceptance.envelope import NOTHING_VISIBLE
from specroute.acceptance.evidence import Evidence
from specroute.acceptance.lossy import Lossy
from specroute.acceptance.outcome import Outcome
from specroute.acceptance.rejection import Distribution, draw, judge
from specroute.acceptance.requests import Asking, Draw, Judging, first
from specroute.acceptance.rules import Rule, Server, choose_rule
from specroute.acceptance.sampling import Sampling
from specroute.acceptance.tail import judge_hidden

_NOTHING = Evidence()


def judging(
    drafted: Sequence[int],
    positions: Sequence[Evidence],
    q: Sequence[Distribution] | None,
    sampling: Sampling,
    server: Server,
    rng: random.Random,
    *,
    lossy: Lossy | None = None,
    batch: int = 4,
) -> Judging:
    """Judge ``drafted``, asking the target where a rule needs it; drive it with ``step``.

    ``positions[i]`` is the evidence at ``drafted[i]``; missing ones show nothing. Judging goes on
    while the committed token is the drafted one, whoever drew it, and stops before a position that
    can't be judged at all (``unseen``). ``batch`` is how many draws rule 2 asks for at once.

    Exact whatever the draft and whichever rules the positions get, without ``lossy``, provided a
    request that is ``mid_rejection`` is answered: a driver that gives up there must call the answer
    heuristic. Giving up at any other request leaves ``drafted[:request.position]`` accepted and
    nothing else decided. Whether it gives up may not depend on the tokens.
    """
    for i, x in enumerate(drafted):
        seen = positions[i] if i < len(positions) else _NOTHING
        token = yield from _position(
            i, x, seen, None if q is None else q[i], sampling, server, rng, lossy, batch
        )
        if token is None:
            return Outcome(i, None, "unseen")
        if token != x:
            return Outcome(i, token, "rejected")
    return Outcome(len(drafted), None, "all")


def _position(
    i: int,
    x: int,
    seen: Evidence,
    q: Distribution | None,
    sampling: Sampling,
    server: Server,
    rng: random.Random,
    lossy: Lossy | None,
    batch: int,
) -> Asking:
    rule = choose_rule(seen.sees, sampling, server, drawn=q is not None, lossy=lossy).rule
    if rule in (Rule.GREEDY, Rule.VISIBLE) and seen.p is not None:
        return judge(x, seen.p, q, rng.random())
    if rule is Rule.TAIL and seen.shown is not None and seen.logprob is not None:
        return (yield from judge_hidden(i, x, seen.logprob, seen.shown, q, rng, biased=True))
    if rule is Rule.SELF_REJECTION and seen.logprob is not None:
        return (
            yield from judge_hidden(
                i, x, seen.logprob, NOTHING_VISIBLE, q, rng, biased=server.logit_bias, batch=batch
            )
        )
    if rule in (Rule.RATIO, Rule.TYPICAL) and lossy is not None:
        if lossy.accepts(x, seen, q):
            return x
        if seen.p is not None:
            return draw(seen.p, rng.random())
    if rule is Rule.PLAIN or not server.draws:
        return None
    return first((yield Draw(i))).token

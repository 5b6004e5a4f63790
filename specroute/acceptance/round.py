"""A draft judged from left to right, each position by the strongest rule it allows.

Knows the rules and their order; asks the target through :mod:`specroute.acceptance.requests` and
deliberately doesn't know how it is reached.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from specroute.acceptance.envelope import NOTHING_VISIBLE
from specroute.acceptance.evidence import Evidence, Sees
from specroute.acceptance.lossy import Lossy, Ratio, Typical
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
    q: Sequence[Distribution | None] | None,
    sampling: Sampling,
    server: Server,
    rng: random.Random,
    *,
    lossy: Lossy | None = None,
    batch: int = 4,
) -> Judging:
    """Judge ``drafted``, asking the target where a rule needs it; drive it with ``step``.

    ``positions[i]`` is the evidence at ``drafted[i]``; missing ones show nothing. ``q[i]`` is
    ``None`` for a token that was not drawn, ``q`` itself where none was. Judging goes on
    while the committed token is the drafted one, whoever drew it, and stops before a position that
    can't be judged at all (``unseen``). ``batch`` is how many draws rule 2 asks for at once.

    Exact whatever the draft and whichever rules the positions get, without ``lossy``, provided a
    request that is ``mid_rejection`` is answered: a driver that gives up there must call the answer
    heuristic. Giving up at any other request leaves ``drafted[:request.position]`` accepted and
    nothing else decided. Whether it gives up may not depend on the tokens.
    """
    for i, x in enumerate(drafted):
        seen, qi = positions[i] if i < len(positions) else _NOTHING, None if q is None else q[i]
        rule = _rules(sampling, server, qi is not None, lossy)[seen.sees]
        if rule in (Rule.GREEDY, Rule.VISIBLE) and seen.p is not None:
            token: int | None = judge(x, seen.p, qi, rng.random())
        elif rule is Rule.TAIL and seen.shown is not None and seen.logprob is not None:
            token = yield from judge_hidden(i, x, seen.logprob, seen.shown, qi, rng, biased=True)
        elif rule is Rule.SELF_REJECTION and seen.logprob is not None:
            bias, all_hidden = server.logit_bias, NOTHING_VISIBLE
            token = yield from judge_hidden(
                i, x, seen.logprob, all_hidden, qi, rng, biased=bias, batch=batch
            )
        elif isinstance(lossy, Ratio | Typical) and rule in (Rule.RATIO, Rule.TYPICAL):
            # At T = 0 p is a point mass, at which no rule could be lenient: p as it is counts.
            weighed = replace(seen, p=None) if sampling.greedy else seen
            token = yield from _lossily(i, x, seen, weighed, qi, lossy, server, rng)
        else:
            token = yield from _own(i, rule is not Rule.PLAIN)
        if token is None:
            return Outcome(i, None, "unseen")
        if token != x:
            return Outcome(i, token, "rejected")
    return Outcome(len(drafted), None, "all")


@lru_cache(maxsize=64)
def _rules(
    sampling: Sampling, server: Server, drawn: bool, lossy: Lossy | None
) -> dict[Sees, Rule]:
    return {
        sees: choose_rule(sees, sampling, server, drawn=drawn, lossy=lossy).rule for sees in Sees
    }


def _lossily(
    i: int,
    x: int,
    seen: Evidence,
    weighed: Evidence,
    q: Distribution | None,
    lossy: Ratio | Typical,
    server: Server,
    rng: random.Random,
) -> Asking:
    """What is refused is replaced by a draw from p, the target's own where p is not known."""
    if lossy.accepts(x, weighed, q):
        return x
    if seen.p is not None:
        return draw(seen.p, rng.random())
    return (yield from _own(i, server.draws))


def _own(i: int, draws: bool) -> Asking:
    """The target's own next token (rule 3), where it can be asked for."""
    return first((yield Draw(i))).token if draws else None

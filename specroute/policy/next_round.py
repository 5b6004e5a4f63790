"""The next round of a request under way: its K, or 0 to hand over to a plain stream.

Knows one request's own rounds beside what was measured before it. Chooses no plan: ``adaptive``
does. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace

from specroute.measure import Snapshot
from specroute.measure.acceptance import hardness
from specroute.measure.newcomers import HARDER
from specroute.policy.base import RoundView
from specroute.policy.chance import rates
from specroute.policy.forecast import best_round, plain_pace, round_seconds, toll_of
from specroute.policy.forecast_flight import best_flight
from specroute.policy.objective import Objective
from specroute.types import Method

_MIN_ROUNDS = 2
"""Rounds before a request's own evidence may end its speculation."""
_POOLED_ROUNDS = 3.0
"""Rounds that the pooled round time counts as, against a request's own."""


_BEHIND = 1.25
"""By how many times plain's seconds a request's own may exceed them for what it has committed,"""
_OF_WHOLE = 0.25
"""once it is behind by this share of a whole plain call,"""
_OF_PROMISE = 0.5
"""and of the seconds that its plan was to save: what the figures promise isn't believed then."""
_MANY = 8
"""Rounds after which that it fell behind is no bad luck any more: the promise is left out,"""
_OF_WHOLE_THEN = 0.2
"""and this share of a whole plain call is enough."""
_BEHIND_BESIDE = 1.15
"""The first of these in ``prefix``, whose lanes slow down the stream that everything rests on,"""
_HEARD = 16
"""after so many tokens."""


def next_k(view: RoundView, snapshot: Snapshot, objective: Objective, max_rounds: int = 0) -> int:
    """K by the marginal rule on the pooled survival updated by this request's own rounds; 0 when
    the rest of the answer would come sooner from a plain stream, its start included, or would take
    less from the other requests under way. A trial that does not win after a few rounds ends.
    Methods other than ``score`` keep to their plan."""
    plan = view.plan
    trial = plan is not None and plan.trial
    tries = max(plan.tries, 1) if plan is not None and trial else _MIN_ROUNDS
    if plan is not None and plan.behind_s < math.inf and view.last and view.last[0] == view.last[1]:
        tries = min(tries, view.rounds)  # A whole draft has passed: nothing to be careful about.
    most = plan.max_rounds if plan is not None else max_rounds
    if most and view.rounds >= most:
        return 0
    if plan is not None and plan.method is Method.PREFIX:
        if view.committed >= _HEARD and behind(view, snapshot, _BEHIND_BESIDE):
            return 0
        if plan.behind_s < math.inf and _is_another(view, snapshot):
            return 0
        return 1  # Nothing is lost by going on: each lane is weighed for itself (``worth``).
    if plan is not None and plan.method is not Method.SCORE:
        return plan.chunk or plan.k  # When to stop is the method's own matter.
    asked = objective
    if plan is not None and plan.usd_per_second is not None:
        objective = replace(objective, usd_per_second=plan.usd_per_second)
    if view.rounds >= max(tries, _MIN_ROUNDS) and behind(view, snapshot, _BEHIND):
        return 0
    limit = objective.max_num_speculative_tokens
    if trial and view.rounds < tries and plan is not None:
        limit = min(limit, max(plan.k, 1))
    if view.remaining is not None:
        limit = min(limit, max(view.remaining - 1, 1))
    if limit < 1:
        return 0
    context = view.context or snapshot.context
    if snapshot.verify_s is None and snapshot.round_law is None:
        if view.verify_s is None:
            return 1 if view.rounds < _MIN_ROUNDS else 0
        snapshot = replace(snapshot, verify_s=view.verify_s)
    best = best_round(
        snapshot,
        context,
        objective,
        limit=limit,
        own=view.own,
        timed=_timed(view, snapshot, context),
        draft_s=view.draft_s,
    )
    if plan is not None and plan.depth > 1:
        flight = best_flight(
            snapshot,
            context,
            objective,
            depths=(plan.depth,),
            limit=limit,
            own=view.own,
            timed=_timed(view, snapshot, context),
            draft_s=view.draft_s,
        )
        best = best if flight is None else flight.run
    ttft_s, tpot_s = plain_pace_now(snapshot)
    if trial and view.rounds < tries and plan is not None:
        return limit
    if tpot_s is None or view.rounds < tries:
        return max(best.k, 1)
    weigh = asked.weigh
    paid = (best.j - best.seconds) * objective.usd_per_second
    seconds = (best.seconds + weigh(paid)) / best.tokens
    # As tokens that the crowd goes without, for each of mine: my own time, and the others' losses.
    taken, plain = toll_of(snapshot, context), tpot_s + weigh(snapshot.usd_out)
    worth = max(1.0 - taken.per_token, 0.0) / plain
    ours = worth * seconds + best.lost / best.tokens
    theirs = worth * plain + taken.per_token
    if trial and (ours > theirs or _lags(view, tpot_s)):
        return 0
    answer = snapshot.pace.answer_tokens or 0.0
    left = max(answer - view.committed, 16.0)
    if view.remaining is not None:
        left = min(left, view.remaining)
    each, prompt = paid / best.tokens, context - view.committed
    if _too_dear(each, snapshot, prompt, asked.max_cost_ratio) and each > _rest(
        snapshot, context, left
    ):
        return 0
    again = (ttft_s or 0.0) + weigh(snapshot.usd_round_prompt) * context
    again = worth * again + taken.per_prompt
    return 0 if (ours - theirs) * left > again else max(best.k, 1)


def plain_pace_now(snapshot: Snapshot) -> tuple[float | None, float | None]:
    """(TTFT, TPOT) of a plain stream that began now. The figures are of when the request began;
    among others the pace of their streams has moved on since, with their number."""
    ttft_s, tpot_s = plain_pace(snapshot)
    now = snapshot.crowd.tpot_s
    if tpot_s is None or now is None or snapshot.crowd.others < 1:
        return ttft_s, tpot_s
    return ttft_s, max(tpot_s, now)


def _is_another(view: RoundView, snapshot: Snapshot) -> bool:
    """Whether a new class is left after its first rounds in ``prefix``, where plain's own stream
    goes on in any case: it is much harder than others are, or late already."""
    plan, (ttft_s, tpot_s) = view.plan, plain_pace_now(snapshot)
    if plan is None or tpot_s is None:
        return False
    if view.seconds - (ttft_s or 0.0) - view.committed * tpot_s > plan.behind_s:
        return True
    tried = view.rounds >= max(plan.tries, _MIN_ROUNDS)
    return tried and hardness(view.own, rates(snapshot.acceptance)) > HARDER


def _lags(view: RoundView, tpot_s: float) -> bool:
    """Whether a trial, left to a plain stream now, would end later than plain by more than it
    may: that stream has to start, too."""
    plan = view.plan
    return plan is not None and view.seconds - view.committed * tpot_s > plan.behind_s


def behind(view: RoundView, snapshot: Snapshot, times: float) -> bool:
    """Whether a request is so late that a plain call would long have brought what it has: by
    ``times`` plain's seconds for that, and by a share of the whole and of what it was to save: the
    more it promised, the more it may vary. A plan that was to be slower
    (and cheaper) may be as late as it was said to be."""
    plan, pace = view.plan, snapshot.pace
    ttft_s, tpot_s = plain_pace(snapshot)
    _, now = plain_pace_now(snapshot)
    if plan is None or tpot_s is None or now is None or not view.seconds:
        return False
    tpot_s = (tpot_s + now) / 2  # A stream would have slowed down as the crowd grew.
    start = ttft_s or 0.0
    seconds = view.seconds
    if plan.depth > 1:
        seconds -= view.verify_s or 0.0  # What is in flight isn't late yet.
    slower, promised = 1.0, 0.0
    if plan.predicted is not None and plan.plain is not None and plan.plain.seconds:
        slower = max(1.0, plan.predicted.seconds / plan.plain.seconds)
        promised = plan.plain.seconds - plan.predicted.seconds
    due = slower * (start + view.committed * tpot_s)
    answer = max(pace.answer_tokens or 0.0, view.committed)
    if view.remaining is not None:
        answer = min(answer, view.committed + view.remaining)
    whole = start + answer * tpot_s
    late = max(_OF_WHOLE * whole, _OF_PROMISE * promised)
    if view.rounds >= _MANY:
        late = _OF_WHOLE_THEN * whole
    return seconds > times * due and seconds - due > late


def _too_dear(each: float, snapshot: Snapshot, prompt: float, ratio: float) -> bool:
    """Whether a token of a round costs more than max_cost_ratio allows, plain's prompt shared
    out over its answer's tokens."""
    usd_out, usd_in = snapshot.usd_out, snapshot.usd_prompt
    if not ratio or usd_out is None or usd_in is None:
        return False
    answer = snapshot.pace.answer_tokens or 256.0
    return each > ratio * (usd_out + usd_in * prompt / answer)


def _rest(snapshot: Snapshot, context: float, left: float) -> float:
    """Dollars a token of a plain stream that takes over for the ``left`` ones: it reads the context
    once more, so that the last few tokens cost more there than in a round, dear as that is."""
    asked = (snapshot.usd_round_prompt or 0.0) * context
    return (snapshot.usd_out or 0.0) + asked / max(left, 1.0)


def _timed(view: RoundView, snapshot: Snapshot, context: float) -> float:
    """This request's own round time as a factor on the figures', which count as a few
    rounds."""
    k = view.last[0] if view.last is not None else view.plan.k if view.plan else 0
    base, each = round_seconds(snapshot, context)
    usual = base + k * each
    if view.verify_s is None or not usual:
        return 1.0
    own = min(view.rounds, 8)
    return (own * view.verify_s / usual + _POOLED_ROUNDS) / (own + _POOLED_ROUNDS)

"""From estimators to the frozen figures of one class: what it has, what it borrows.

Knows how a class falls back on coarser ones and plain calls move the law of scoring requests. Reads
alone: nothing is estimated here.
"""

from __future__ import annotations

from math import hypot, sqrt
from typing import TYPE_CHECKING

from specroute.measure.acceptance import Acceptance
from specroute.measure.anchor import shifted
from specroute.measure.crowd import NOBODY
from specroute.measure.estimate import Estimate, Law, Z
from specroute.measure.figures import Pace, Snapshot
from specroute.measure.kinds import Class, Draft, Judged, Prediction, Target
from specroute.measure.lending import Rounds
from specroute.measure.level import Share
from specroute.measure.regression import scaled
from specroute.measure.traffic import lineage

if TYPE_CHECKING:
    from specroute.measure.measurements import Measurements

WANDERS = 0.015
"""By what share a plain pace changes from one request to the next, about (a standard deviation)."""
_SURE = 64.0
"""Judged tokens of a class that is new no more."""
_LENT_ANSWERS = 2.0
"""Answers that a coarser class's mean length counts as."""


def read(
    measured: Measurements, target: str, drafter: str, traffic: str, how: str, prompt_tokens: int
) -> Snapshot:
    """As :meth:`Measurements.snapshot`."""
    seen = measured.targets.get(target) or _NO_TARGET
    judged = measured.judged.get((target, how)) or _NO_JUDGE
    draft = measured.drafts.get(drafter) or _NO_DRAFT
    names = lineage(traffic)
    own = measured.classes.get((target, names[0])) or _NO_CLASS
    rounds = next(
        (r for n in names if (r := measured.rounds.get((target, drafter, how, n)))), _NO_ROUNDS
    )
    mine = rounds if measured.rounds.get((target, drafter, how, traffic)) is rounds else _NO_ROUNDS
    prediction = _prediction(measured, target, drafter, names)
    in_flight = max(seen.in_flight - 1, 0)
    # Streams that are under way are timed as they come: the pace is no older than they are.
    idle = 0 if seen.crowd.streaming else seen.idle
    ttft = scaled(seen.ttft.law(), stale(own.ttft.estimate(seen.ttft.epoch), idle))
    tpot = scaled(seen.tpot.law(), stale(own.tpot.estimate(seen.tpot.epoch), idle))
    at = (prompt_tokens, in_flight) if prompt_tokens else seen.ttft.ordinary
    answer = _answer(measured, target, names)
    law = round_law_now(seen, judged)
    scoring = None if law is None else law.mean_at(*judged.law.ordinary)
    token = draft.token.estimate()
    return Snapshot(
        pace=Pace(
            None if ttft is None else ttft.mean_at(*at),
            None if tpot is None else tpot.mean_at(*at),
            None if answer is None else answer.mean,
        ),
        acceptance=rounds.evidence() if rounds is mine else rounds.lends(),
        of_its_own=mine.weight(),
        even=_even(mine if rounds is mine else None, rounds),
        verify_s=None if scoring is None else scoring + (judged.drawing.value or 0.0),
        draft_s=None if token is None else token.mean,
        rounds=judged.law.weight,
        since_tried=measured.since.get((target, drafter, traffic), 0),
        cached=_share(seen.cached, "plain"),
        round_cached=_share(seen.cached, "score"),
        rounds_seen=mine.own(),
        shadow=mine.own(shadow=True),
        round_law=law,
        ttft_law=ttft,
        tpot_law=tpot,
        first_draft_law=draft.first.law(),
        drafting=token,
        answer=answer,
        draws=judged.draws.estimate(),
        draw=judged.draw.estimate(),
        failures=seen.failed.estimate(),
        limited=seen.limited.estimate(),
        idle=idle,
        quickened=_quickened(measured, target, seen),
        in_flight=in_flight,
        crowd=seen.crowd.frozen(target, draft.crowd, late_s=measured.turns.per_round())
        if in_flight
        else NOBODY,
        prompt_tokens=prompt_tokens,
        predicted=None if prediction is None else prediction.taken.estimate(),
        predicted_sent=None if prediction is None else prediction.sent.value,
        predicted_tpot=None if prediction is None else prediction.tpot.estimate(),
        by_temperature=_by_temperature(measured, target, drafter, how),
    )


def _even(mine: Rounds | None, nearest: Rounds) -> bool:
    """Whether a class that is new can be taken to be like those that lend it what they have seen.
    ``nearest``: of the class or the coarser ones, the finest that has seen anything."""
    if mine is None:
        return nearest.new.even
    if mine.weight() >= _SURE:
        return False  # Nobody asks.
    lender = mine.lender()
    return lender is not None and lender.new.even


def stale(factor: Estimate, idle: int) -> Estimate:
    """A factor on a plain pace that hasn't been timed for ``idle`` requests: it may have wandered
    off as a random walk does, by ``WANDERS`` a request."""
    if not idle:
        return factor
    half = hypot((factor.high - factor.low) / 2, Z * WANDERS * sqrt(idle) * factor.mean)
    return Estimate.around(factor.mean, half / Z, factor.weight)


def _quickened(measured: Measurements, name: str, target: Target) -> float:
    """What a scoring request takes against what it took when a stream was last timed; 1 at most."""
    if not target.idle or target.beside is None:
        return 1.0
    how, before = target.beside
    judged = measured.judged.get((name, how))
    law = None if judged is None else round_law_now(target, judged)
    if judged is None or law is None:
        return 1.0
    at = judged.law.ordinary
    return min(1.0, law.mean_at(*at) / max(before.mean_at(*at), 1e-9))


def _answer(measured: Measurements, target: str, names: tuple[str, ...]) -> Estimate | None:
    """The mean length of a class's answers; that of the coarser one counts as a few of them."""
    found: Estimate | None = None
    for name in reversed(names):
        seen = measured.classes.get((target, name))
        own = None if seen is None else seen.answer.estimate()
        if own is None:
            continue
        if found is None:
            found = own
            continue
        w, s = own.weight, min(_LENT_ANSWERS, found.weight)
        mean = (w * own.mean + s * found.mean) / (w + s)
        half = hypot(w * (own.high - own.mean), s * (found.high - found.mean)) / (w + s)
        found = Estimate.around(mean, half / Z, w)
    return found


def _prediction(
    measured: Measurements, target: str, drafter: str, names: tuple[str, ...]
) -> Prediction | None:
    """Of the finest class that knows it."""
    found = (measured.predictions.get((target, drafter, name)) for name in names)
    return next((prediction for prediction in found if prediction is not None), None)


def _by_temperature(
    measured: Measurements, target: str, drafter: str, how: str
) -> tuple[tuple[float, Acceptance], ...]:
    if not measured.temperatures:
        return ()
    return tuple(
        (key[3], rounds.own())
        for key, rounds in sorted(measured.temperatures.items())
        if key[:3] == (target, drafter, how)
    )


def round_law_now(target: Target, judged: Judged) -> Law | None:
    """The law of scoring requests, moved by what plain calls have moved since they were timed."""
    law, first = judged.law.law(), target.ttft.law()
    if law is None or first is None:
        return law
    plain = first.at(judged.law.ordinary[0], 0.0)
    return shifted(law, judged.anchor.shift(plain, target.ttft.seen))


def _share(shares: dict[str, Share], purpose: str) -> Estimate | None:
    found = shares.get(purpose)
    return None if found is None else found.estimate()


_NO_TARGET, _NO_CLASS, _NO_JUDGE, _NO_DRAFT = Target(), Class(), Judged(), Draft()
_NO_ROUNDS = Rounds()

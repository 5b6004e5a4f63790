"""Figures drawn from what is known of them (Thompson sampling), and rates position by position.

The measured survival is a product of conditional rates, each with a Beta posterior. A draw moves
all of them by the same number of their standard deviations: the rates of neighbouring positions are
wrong together, and S(k) is as uncertain as it really is; independent draws would cancel out.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter

from specroute.measure import Acceptance, Estimate, Snapshot
from specroute.measure.acceptance import hardness

HOPE = 0.85
"""Per-token acceptance assumed where none was measured: optimistic, so that it gets tried."""
_PSEUDO = 2.0
"""Judged tokens that the rate over all positions counts as, at a position with none."""
_LONG = 16
"""Tokens of a long round."""
_MOST_KEPT = 64
"""Survivals kept, so that they needn't be worked out again."""
CHANGES = 0.001
"""The chance, a request, that a target's pace has changed at once."""
_LEAST = 0.1
"""The smallest factor that a round's time is drawn with."""
_UNTIMED = 0.3
"""Doubt about a round's time, as a share of it, that an untried law has at least once."""


def rates(
    pooled: Acceptance, own: Acceptance | None = None, *, z: float = 0.0, strength: float = 8.0
) -> Iterator[float]:
    """P(token k is accepted | those before it were), k = 1, 2, …, without end.

    ``own``: a request's own rounds; ``pooled`` then counts as at most ``strength`` judged tokens a
    position. Where all that is pooled is other classes', they tell first how much harder this one
    is, at every position (``hardness``). Answers of a known class are too much alike for that: in
    the simulator it costs 2 % of the seconds. ``z``: by how many standard deviations of the
    posterior each rate is moved. Lazy, so that whoever needs the first few pays for no more.
    """
    passed, judged = pooled.passed, pooled.judged
    total = sum(judged)
    overall = (_rate(pooled) * total + HOPE * _PSEUDO) / (total + _PSEUDO)
    spread = pooled.dispersion
    pseudo = overall * _PSEUDO
    if own is None:
        for p, n in zip(passed, judged, strict=True):
            weight = n / spread + _PSEUDO
            rate = (p / spread + pseudo) / weight
            yield _moved(rate, weight, z) if z else rate
        rate = _moved(overall, min(total, 4 * _PSEUDO) + _PSEUDO, z) if z else overall
        while True:
            yield rate
    mine = own.judged
    n, m, k = len(judged), len(mine), 0
    power = hardness(own, rates(pooled)) if pooled.of_others and m else 1.0
    while True:
        if k < n:
            weight = judged[k] / spread + _PSEUDO
            rate = (passed[k] / spread + pseudo) / weight
        else:
            weight, rate = min(total, 4 * _PSEUDO) + _PSEUDO, overall
        rate = rate**power
        weight = min(weight, strength)
        if k < m:
            rate = (rate * weight + own.passed[k]) / (weight + mine[k])
            weight += mine[k]
        yield _moved(rate, weight, z) if z else rate
        k += 1


def _moved(rate: float, weight: float, z: float) -> float:
    rate += z * math.sqrt(rate * (1 - rate) / (weight + 1))
    return 0.0 if rate < 0.0 else 1.0 if rate > 1.0 else rate


def _rate(seen: Acceptance) -> float:
    """α̂ of rounds that go as ``seen``: evidence that is borrowed lies at all positions alike,
    also where no round gets to."""
    judged, passed, s = 0.0, 0.0, 1.0
    for p, n in zip(seen.passed[:_LONG], seen.judged[:_LONG], strict=True):
        if n:
            judged += s
            s *= p / n
            passed += s
    return passed / judged if judged else 0.0


class Reach:
    """S(1), S(2), …: the running product of ``rates``, worked out as far as it is asked for."""

    __slots__ = ("_rates", "known")

    def __init__(self, rates: Iterator[float]) -> None:
        self._rates = rates
        self.known: list[float] = []

    def upto(self, k: int) -> list[float]:
        """At least S(1..k), as a list that later calls lengthen."""
        known = self.known
        s = known[-1] if known else 1.0
        for rate in islice(self._rates, max(0, k - len(known))):
            s *= rate
            known.append(s)
        return known

    def until(self, least: float, most: int) -> list[float]:
        """S(1..k) up to where it falls below ``least``, ``most`` at most."""
        known = self.known
        while len(known) < most and (not known or known[-1] >= least):
            self.upto(min(most, len(known) + 8))
        return known[:most] if known[-1] >= least else [s for s in known if s >= least]


@dataclass(frozen=True, slots=True)
class Drawn(Acceptance):
    """Evidence whose rates are all moved by ``z`` standard deviations."""

    z: float = 0.0

    def survival(
        self,
        k: int,
        prior: Acceptance | None = None,
        *,
        default: float = HOPE,
        strength: float = 8.0,
    ) -> tuple[float, ...]:
        """As :meth:`Acceptance.survival`, of the draw."""
        found = Reach(rates(self, prior, z=self.z, strength=strength))
        return tuple(found.upto(k)[:k])


class _Kept(threading.local):
    """Survivals by the identity of their evidence, one set a thread."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Acceptance, Reach]] = {}


_kept = _Kept()


def reach(acceptance: Acceptance) -> Reach:
    """The survival of one body of evidence, kept: several plans and weights ask for the same."""
    kept = _kept.found
    found = kept.get(id(acceptance))
    if found is None or found[0] is not acceptance:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        z = acceptance.z if isinstance(acceptance, Drawn) else 0.0
        found = kept[id(acceptance)] = (acceptance, Reach(rates(acceptance, z=z)))
    return found[1]


def drawn(figures: Snapshot, rng: random.Random) -> Snapshot:
    """``figures`` as they may be: acceptance, round and drafting times drawn within their doubt."""
    seen = figures.acceptance
    acceptance = Drawn(seen.passed, seen.judged, seen.dispersion, z=rng.gauss(0.0, 1.0))
    verify_s, law, draft_s = figures.verify_s, figures.round_law, figures.draft_s
    if law is not None:
        usual = law.at(figures.context, 4.0)
        factor = max(_LEAST, usual.draw(rng) / usual.mean) if usual.mean > 0 else 1.0
        exact = Estimate.exactly(law.factor.mean * factor)
        law = replace(law, factor=exact, covariance=(0.0,) * 6)
    elif verify_s is not None:
        doubt = _UNTIMED / math.sqrt(1 + figures.rounds)
        verify_s *= math.exp(rng.gauss(0.0, doubt))
    if figures.drafting is not None:
        draft_s = figures.drafting.draw(rng)
    cached = figures.round_cached
    if cached is None and figures.usd_cached is not None:
        cached = Estimate.exactly(rng.random())
    elif cached is not None:
        cached = Estimate.exactly(min(1.0, cached.draw(rng)))
    predicted = figures.predicted
    if predicted is not None:
        predicted = Estimate.exactly(min(1.0, predicted.draw(rng)))
    return _changed(
        figures,
        predicted=predicted,
        acceptance=acceptance,
        verify_s=verify_s,
        round_law=law,
        draft_s=draft_s,
        round_cached=cached,
    )


def drawn_pace(figures: Snapshot, rng: random.Random) -> float:
    """A plain call's seconds as they may be, as a factor on what they are taken for. A pace that
    hasn't been timed for a while may have changed at once, to any quicker one; and where scoring
    requests have become quicker since, so may it, by as much."""
    tpot, factor = figures.tpot(), 1.0
    if tpot is not None and tpot.mean > 0:
        factor = max(_LEAST, tpot.draw(rng) / tpot.mean)
    if figures.idle:
        if rng.random() < CHANGES * figures.idle:
            factor *= max(rng.random(), _LEAST)
        if figures.quickened < 1:
            factor *= figures.quickened ** rng.random()
    return factor


_FIELDS = tuple(field.name for field in fields(Snapshot))
_VALUES = attrgetter(*_FIELDS)
_SETTERS = {name: vars(Snapshot)[name].__set__ for name in _FIELDS}
_SET = tuple(_SETTERS.values())


def _changed(figures: Snapshot, **changes: object) -> Snapshot:
    """``dataclasses.replace`` in a fraction of its time, past the frozen class's ``__init__``: a
    plan makes one such copy a candidate, of very many fields, and has 200 µs in all."""
    made = object.__new__(Snapshot)
    for put, value in zip(_SET, _VALUES(figures), strict=True):
        put(made, value)
    for name, value in changes.items():
        _SETTERS[name](made, value)
    return made

"""All that one client has measured, kept by target, drafter, judge and traffic class.

Pure: no I/O and no clock; ``at`` is seconds on the clock of whoever calls, and only tells how old a
figure is. Updates are O(1), each well under 50 µs; what is read is frozen. How one figure follows
its values, its estimator knows; how figures combine, ``figures``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import hypot
from typing import TypeVar

from specroute.measure.acceptance import Acceptance
from specroute.measure.anchor import Anchor, shifted
from specroute.measure.estimate import Estimate, Law, Z
from specroute.measure.figures import Pace, Snapshot
from specroute.measure.level import Factor, Frequency, Level, Mean, Share
from specroute.measure.lifetable import Rounds
from specroute.measure.regression import Regression, scaled
from specroute.measure.traffic import lineage
from specroute.types import Attempt

MOST_CLASSES = 1024
"""Traffic classes kept, per kind of figure; those not seen for longest make room."""
SHORT = 4
"""Answers of fewer tokens say little of the pace."""
_STEADY = 32
"""Tokens from which on a stream's pace counts in full."""
_LENT_ANSWERS = 2.0
"""Answers that a coarser class's mean length counts as."""
_FADES, _RESTED = 0.975, 4
"""What evidence of rounds keeps of its weight with each request that makes none; every so many."""
_SETTLED = 4.0
"""Answers behind a target's law before classes are compared with it."""
_ROUGH = 0.1
"""What a rough pace to start from counts beside a plain answer's."""

K = TypeVar("K")
V = TypeVar("V")


def _round_law() -> Regression:
    return Regression((1000.0, 10.0), (0.02, 0.02), decay=0.99)


def _ttft_law() -> Regression:
    return Regression((1000.0, 10.0), (0.05, 0.2))


def _tpot_law() -> Regression:
    return Regression((1000.0, 10.0), (0.002, 0.02))


def _first_draft_law() -> Regression:
    return Regression((1000.0, 1.0), (0.1, 1e-6))


class Target:
    """What is known of one target whatever is drafted: pace, refusals, what it caches."""

    __slots__ = ("cached", "failed", "in_flight", "limited", "seen_at", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft, self.tpot = _ttft_law(), _tpot_law()
        self.failed, self.limited = Share(), Share()
        self.cached: dict[str, Share] = {}
        self.in_flight = 0
        self.seen_at = 0.0


class Class:
    """What a traffic class has of its own at a target: its pace against the target's, lengths."""

    __slots__ = ("answer", "seen_at", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft, self.tpot = Factor(), Factor()
        self.answer = Level(0.95)
        self.seen_at = 0.0


class Judged:
    """What one way of judging costs at a target: the scoring request, and what the rules draw."""

    __slots__ = ("anchor", "draw", "drawing", "draws", "law", "seen_at")

    def __init__(self) -> None:
        self.law = _round_law()
        self.anchor = Anchor()
        self.draws = Frequency()
        """Per judged token."""
        self.draw = Level()
        """Seconds of one."""
        self.drawing = Mean(0.98)
        """Seconds of all of a round's."""
        self.seen_at = 0.0


class Draft:
    """How long a drafter takes: per token, and for reading a prompt."""

    __slots__ = ("first", "seen_at", "token")

    def __init__(self) -> None:
        self.token = Level(0.9)
        self.first = _first_draft_law()
        self.seen_at = 0.0


class Prediction:
    """What share of predicted tokens a server takes, how many it is sent, how fast it is then."""

    __slots__ = ("seen_at", "sent", "taken", "tpot")

    def __init__(self) -> None:
        self.taken = Share(0.95)
        self.sent, self.tpot = Level(0.95), Level(0.95)
        self.seen_at = 0.0


class Measurements:
    """All estimators of one client."""

    def __init__(self) -> None:
        self.targets: dict[str, Target] = defaultdict(Target)
        self.classes: dict[tuple[str, str], Class] = {}
        self.judged: dict[tuple[str, str], Judged] = defaultdict(Judged)
        self.drafts: dict[str, Draft] = defaultdict(Draft)
        self.rounds: dict[tuple[str, str, str, str], Rounds] = {}
        """By target, drafter, judge and class."""
        self.temperatures: dict[tuple[str, str, str, float], Rounds] = {}
        """By target, drafter, judge and the draft's temperature."""
        self.predictions: dict[tuple[str, str, str], Prediction] = {}
        """By target, drafter and class."""
        self._since: dict[tuple[str, str, str], int] = defaultdict(int)

    # --- requests ---------------------------------------------------------------------------

    def begin(self, target: str) -> int:
        """A request for ``target`` begins; how many others are under way there."""
        if target not in self.targets:
            _make_room(self.targets, MOST_CLASSES)
        seen = self.targets[target]
        seen.in_flight += 1
        return seen.in_flight - 1

    def end(self, target: str) -> None:
        """A request that was begun has ended."""
        seen = self.targets[target]
        seen.in_flight = max(0, seen.in_flight - 1)

    def others(self, target: str) -> int:
        """Requests under way at ``target`` beside the one that asks."""
        return max(self.targets[target].in_flight - 1, 0)

    def attempted(self, attempts: Iterable[Attempt], at: float = 0.0) -> None:
        """One request's calls that left for providers: what failed, what was refused, what was
        cached. Its first scoring request finds no more in a cache than a plain call would, so it
        counts as one."""
        first = True
        for attempt in attempts:
            if attempt.outcome in ("cancelled", "abandoned"):
                continue  # The caller's doing.
            seen = self.targets[attempt.target]
            seen.seen_at = at
            refused = attempt.outcome == "status 429"
            seen.limited.add(refused)
            if not refused:
                seen.failed.add(attempt.outcome != "ok")
            usage = attempt.usage
            if usage.prompt_tokens and usage.cached_tokens is not None:
                purpose = attempt.purpose
                if purpose == "score" and first:
                    purpose, first = "plain", False
                share = seen.cached.setdefault(purpose, Share(0.95))
                share.add(min(1.0, usage.cached_tokens / usage.prompt_tokens))

    # --- plain pace -------------------------------------------------------------------------

    def plain(
        self,
        target: str,
        traffic: str,
        *,
        ttft_s: float,
        tpot_s: float | None,
        tokens: int,
        prompt_tokens: int = 0,
        in_flight: int = 0,
        at: float = 0.0,
    ) -> None:
        """A finished plain answer of ``tokens`` tokens."""
        self.pace(
            target,
            traffic,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            tokens=tokens,
            context=prompt_tokens,
            in_flight=in_flight,
            at=at,
        )
        self.answer(target, traffic, tokens, at)

    def pace(
        self,
        target: str,
        traffic: str,
        *,
        ttft_s: float | None,
        tpot_s: float | None,
        tokens: int,
        context: int = 0,
        in_flight: int = 0,
        at: float = 0.0,
    ) -> None:
        """One of the target's own streams, a plain answer's or a part of one: seconds to its first
        token after ``context`` tokens, and per token of the ``tokens`` that came."""
        seen, own = self.targets[target], self.own_class(target, traffic)
        seen.seen_at = own.seen_at = at
        if ttft_s is not None and ttft_s > 0:
            seen.ttft.add(context, in_flight, ttft_s)
            _compare(own.ttft, seen.ttft, context, in_flight, ttft_s, 1.0)
        if tpot_s is not None and tpot_s > 0 and tokens >= SHORT:
            weight = min(1.0, tokens / _STEADY)
            seen.tpot.add(context, in_flight, tpot_s, weight)
            _compare(own.tpot, seen.tpot, context, in_flight, tpot_s, weight)

    def whole(
        self,
        target: str,
        traffic: str,
        *,
        total_s: float,
        tokens: int,
        prompt_tokens: int = 0,
        in_flight: int = 0,
        at: float = 0.0,
    ) -> None:
        """A plain answer that came at once: its time less a known time to the first token is its
        tokens'. Where none is known, or it is most of the time, only the length counts."""
        law = self.targets[target].ttft.law()
        if law is not None and tokens >= SHORT:
            left = total_s - law.mean_at(prompt_tokens, in_flight)
            if left > total_s / 2:
                self.pace(
                    target,
                    traffic,
                    ttft_s=None,
                    tpot_s=left / (tokens - 1),
                    tokens=tokens,
                    context=prompt_tokens,
                    in_flight=in_flight,
                    at=at,
                )
        self.answer(target, traffic, tokens, at)

    def first_pace(self, target: str, *, ttft_s: float, tpot_s: float, at: float = 0.0) -> None:
        """A rough plain pace to start from; counts little beside a plain answer."""
        seen = self.targets[target]
        seen.seen_at = at
        seen.ttft.add(0, 0, ttft_s, _ROUGH)
        seen.tpot.add(0, 0, tpot_s, _ROUGH)

    def answer(self, target: str, traffic: str, tokens: int, at: float = 0.0) -> None:
        """The length of a finished answer, however it came about."""
        if tokens < 1:
            return
        for name in lineage(traffic):
            own = self.own_class(target, name)
            own.answer.add(tokens)
            own.seen_at = at

    # --- speculation ------------------------------------------------------------------------

    def verify_time(
        self,
        target: str,
        how: str,
        seconds: float,
        *,
        context: float = 0.0,
        k: float = 0.0,
        at: float = 0.0,
    ) -> None:
        """One scoring request's time, calibration's included. ``how``: as in :meth:`round`."""
        seen, first = self.judged[target, how], self.targets[target].ttft
        before = seen.law.mean
        stepped = seen.law.add(context, k, seconds)
        now, law = seen.law.mean, first.law()
        if law is not None and now is not None:
            step = now - before if stepped and before is not None else 0.0
            plain = law.mean_at(seen.law.ordinary[0], 0.0)
            seen.anchor.timed(plain, first.seen, step, 1 / max(seen.law.weight, 1.0))
        seen.seen_at = at

    def draft_time(self, drafter: str, seconds: float, at: float = 0.0) -> None:
        """Seconds per drafted token, timed outside any request."""
        seen = self.drafts[drafter]
        seen.token.add(seconds)
        seen.seen_at = at

    def first_draft(
        self, drafter: str, seconds: float, *, context: int, drafted: int, at: float = 0.0
    ) -> None:
        """A request's first draft, which also reads its prompt. Counts once a token's own time is
        known, for what is left without it."""
        seen = self.drafts[drafter]
        each = seen.token.value
        if each is not None:
            seen.first.add(context, 0.0, max(seconds - drafted * each, 1e-6))
            seen.seen_at = at

    def round(
        self,
        target: str,
        drafter: str,
        traffic: str,
        *,
        drafted: int,
        accepted: int,
        judged: int,
        draft_s: float | None,
        verify_s: float | None,
        how: str = "",
        context: int = 0,
        draws: int = 0,
        draws_s: float = 0.0,
        temperature: float | None = None,
        answer: object = None,
        at: float = 0.0,
    ) -> None:
        """One verification round. ``how``: who judged; kinds that differ in it share nothing but
        the draft's time. ``draft_s``, ``verify_s``: ``None`` where a round doesn't tell (the first
        draft also reads the prompt; lanes are no scoring request). ``verify_s`` is without the
        ``draws_s`` seconds of the ``draws`` tokens that the rules asked for. ``temperature``: the
        draft's, where it was sampled. ``answer`` tells answers apart, whose rounds are alike; see
        :meth:`over`. ``None``: not known, each round counts by itself."""
        rounds = self.rounds_of(target, drafter, how, traffic)
        rounds.add(accepted, judged, answer=answer, at=at)
        if temperature:
            key = (target, drafter, how, round(temperature, 2))
            found = self.temperatures.get(key)
            if found is None:
                _make_room(self.temperatures, 256)
                found = self.temperatures[key] = Rounds()
            found.add(accepted, judged, answer=answer, at=at)
        if verify_s is not None:
            self.verify_time(target, how, verify_s, context=context, k=drafted, at=at)
            seen = self.judged[target, how]
            seen.drawing.add(draws_s)
            if judged:
                seen.draws.add(draws, judged)
            if draws:
                seen.draw.add(draws_s / draws)
        if drafted and draft_s is not None:
            self.draft_time(drafter, draft_s / drafted, at)

    def shadowed(
        self,
        target: str,
        drafter: str,
        traffic: str,
        rounds: Iterable[tuple[int, int]],
        *,
        how: str = "",
        weight: float = 1.0,
        at: float = 0.0,
    ) -> None:
        """Rounds (accepted, judged) that a finished plain answer would have had: all of one."""
        seen, answer = self.rounds_of(target, drafter, how, traffic), object()
        for accepted, judged in rounds:
            seen.add(accepted, judged, shadow=True, weight=weight, answer=answer, at=at)
        seen.over(answer, shadow=True)

    def over(self, target: str, drafter: str, traffic: str, answer: object, how: str = "") -> None:
        """The answer that rounds were counted for has ended. Changes are told from whole answers,
        so they are seen only after this."""
        found = self.rounds.get((target, drafter, how, traffic))
        if found is not None:
            found.over(answer)

    def predicted(
        self,
        target: str,
        drafter: str,
        traffic: str,
        *,
        drafted: int,
        accepted: int,
        tpot_s: float | None = None,
        at: float = 0.0,
    ) -> None:
        """A prediction of ``drafted`` tokens, of which the server took ``accepted``, anywhere.
        ``tpot_s``: of the answer, after its first token."""
        if drafted:
            for name in lineage(traffic):
                found = self.predictions.get((target, drafter, name))
                if found is None:
                    _make_room(self.predictions, MOST_CLASSES)
                    found = self.predictions[target, drafter, name] = Prediction()
                found.taken.add(accepted / drafted)
                found.sent.add(drafted)
                if tpot_s:
                    found.tpot.add(tpot_s)
                found.seen_at = at

    def planned(
        self, target: str, drafter: str, traffic: str, *, tried: bool, how: str = ""
    ) -> None:
        """A plan was made; ``tried``: with speculation. What isn't tried is less and less sure."""
        key = (target, drafter, traffic)
        if key not in self._since:
            _make_room(self._since, MOST_CLASSES)
        since = self._since[key] = 0 if tried else self._since[key] + 1
        if since and since % _RESTED == 0:
            rounds = self.rounds.get((target, drafter, how, traffic))
            if rounds is not None:
                rounds.fade(_FADES**_RESTED)
            judged = self.judged.get((target, how))
            if judged is not None and judged.law.weight > _SETTLED:
                judged.law.forget(_FADES**_RESTED)

    # --- reading ----------------------------------------------------------------------------

    def snapshot(
        self, target: str, drafter: str, traffic: str, how: str = "", *, prompt_tokens: int = 0
    ) -> Snapshot:
        """The figures for one class and a prompt of ``prompt_tokens``; what the class has too
        little evidence for comes from the coarser ones. A request that has begun doesn't count
        itself among those under way."""
        seen = self.targets.get(target) or _NO_TARGET
        judged = self.judged.get((target, how)) or _NO_JUDGE
        draft = self.drafts.get(drafter) or _NO_DRAFT
        names = lineage(traffic)
        own = self.classes.get((target, names[0])) or _NO_CLASS
        rounds = next(
            (r for n in names if (r := self.rounds.get((target, drafter, how, n)))), _NO_ROUNDS
        )
        mine = rounds if self.rounds.get((target, drafter, how, traffic)) is rounds else _NO_ROUNDS
        prediction = self._prediction(target, drafter, names)
        in_flight = max(seen.in_flight - 1, 0)
        ttft = scaled(seen.ttft.law(), own.ttft.estimate(seen.ttft.epoch))
        tpot = scaled(seen.tpot.law(), own.tpot.estimate(seen.tpot.epoch))
        at = (prompt_tokens, in_flight) if prompt_tokens else seen.ttft.ordinary
        answer = self._answer(target, names)
        law = _round_law_now(seen, judged)
        scoring = None if law is None else law.mean_at(*judged.law.ordinary)
        token = draft.token.estimate()
        return Snapshot(
            pace=Pace(
                None if ttft is None else ttft.mean_at(*at),
                None if tpot is None else tpot.mean_at(*at),
                None if answer is None else answer.mean,
            ),
            acceptance=rounds.evidence() if rounds is mine else rounds.lends(),
            verify_s=None if scoring is None else scoring + (judged.drawing.value or 0.0),
            draft_s=None if token is None else token.mean,
            rounds=judged.law.weight,
            since_tried=self._since.get((target, drafter, traffic), 0),
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
            in_flight=in_flight,
            prompt_tokens=prompt_tokens,
            predicted=None if prediction is None else prediction.taken.estimate(),
            predicted_sent=None if prediction is None else prediction.sent.value,
            predicted_tpot=None if prediction is None else prediction.tpot.estimate(),
            by_temperature=self._by_temperature(target, drafter, how),
        )

    def _answer(self, target: str, names: tuple[str, ...]) -> Estimate | None:
        """The mean length of a class's answers; that of the coarser one counts as a few of them."""
        found: Estimate | None = None
        for name in reversed(names):
            seen = self.classes.get((target, name))
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

    def _prediction(self, target: str, drafter: str, names: tuple[str, ...]) -> Prediction | None:
        """Of the finest class that knows it."""
        found = (self.predictions.get((target, drafter, name)) for name in names)
        return next((prediction for prediction in found if prediction is not None), None)

    def _by_temperature(
        self, target: str, drafter: str, how: str
    ) -> tuple[tuple[float, Acceptance], ...]:
        if not self.temperatures:
            return ()
        return tuple(
            (key[3], rounds.own())
            for key, rounds in sorted(self.temperatures.items())
            if key[:3] == (target, drafter, how)
        )

    # --- the classes ------------------------------------------------------------------------

    def own_class(self, target: str, traffic: str) -> Class:
        """What a class has of its own, made if it has nothing yet."""
        found = self.classes.get((target, traffic))
        if found is None:
            _make_room(self.classes, MOST_CLASSES)
            found = self.classes[target, traffic] = Class()
        return found

    def rounds_of(self, target: str, drafter: str, how: str, traffic: str) -> Rounds:
        """A class's rounds, made (with those above it) if there are none yet."""
        found = self.rounds.get((target, drafter, how, traffic))
        if found is None:
            _make_room(self.rounds, MOST_CLASSES)
            parent = None
            for name in reversed(lineage(traffic)):
                key = (target, drafter, how, name)
                parent = self.rounds.get(key) or self.rounds.setdefault(key, Rounds(parent))
            assert parent is not None
            found = parent
        return found


def _compare(
    factor: Factor, law: Regression, x: float, y: float, value: float, weight: float
) -> None:
    found = law.law()
    if found is not None and law.weight >= _SETTLED:
        factor.add(value / max(found.mean_at(x, y), 1e-9), law.epoch, weight)


def _round_law_now(target: Target, judged: Judged) -> Law | None:
    """The law of scoring requests, moved by what plain calls have moved since they were timed."""
    law, first = judged.law.law(), target.ttft.law()
    if law is None or first is None:
        return law
    plain = first.at(judged.law.ordinary[0], 0.0)
    return shifted(law, judged.anchor.shift(plain, target.ttft.seen))


def _share(shares: dict[str, Share], purpose: str) -> Estimate | None:
    found = shares.get(purpose)
    return None if found is None else found.estimate()


def _make_room(kept: dict[K, V], most: int) -> None:
    """Where ``most`` are kept, let go of the quarter that was seen longest ago."""
    if len(kept) >= most:
        oldest = sorted(kept, key=lambda key: (getattr(kept[key], "seen_at", 0.0), _coarse(key)))
        for key in oldest[: most // 4]:
            del kept[key]


def _coarse(key: object) -> bool:
    return isinstance(key, tuple) and "/" not in str(key[-1])


_NO_TARGET, _NO_CLASS, _NO_JUDGE, _NO_DRAFT = Target(), Class(), Judged(), Draft()
_NO_ROUNDS = Rounds()

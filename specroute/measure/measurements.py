"""All that one client has measured, kept by target, drafter, judge and traffic class.

Pure: no I/O and no clock; ``at`` is seconds on the clock of whoever calls, and only tells how old a
figure is. Updates are O(1), each well under 50 µs; what is read is frozen. How one figure follows
its values, its estimator knows; how figures combine, ``figures``.
"""

from __future__ import annotations

from collections.abc import Sequence

from specroute.measure.calls import Calls
from specroute.measure.crowd import NOBODY, Crowd
from specroute.measure.figures import Snapshot
from specroute.measure.files import MOST_CLASSES, make_room
from specroute.measure.kinds import Prediction
from specroute.measure.lending import Rounds
from specroute.measure.level import Factor
from specroute.measure.reading import read, round_law_now
from specroute.measure.regression import Regression
from specroute.measure.traffic import lineage

SHORT = 4
"""Answers of fewer tokens say little of the pace."""
_STEADY = 32
"""Tokens from which on a stream's pace counts in full."""
_FADES, _RESTED = 0.975, 4
"""What evidence of rounds keeps of its weight with each request that makes none; every so many."""
_SETTLED = 4.0
"""Answers behind a target's law before classes are compared with it."""
_QUICKER = 0.8
"""Of a pace that isn't timed all the time: a stream that is quicker than that is news."""
_ROUGH = 0.1
"""What a rough pace to start from counts beside a plain answer's."""


class Measurements(Calls):
    """All estimators of one client."""

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
        in_flight: float = 0,
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
        in_flight: float = 0,
        at: float = 0.0,
    ) -> None:
        """One of the target's own streams, a plain answer's or a part of one: seconds to its first
        token after ``context`` tokens, and per token of the ``tokens`` that came."""
        seen, own = self.targets[target], self.own_class(target, traffic)
        seen.seen_at = own.seen_at = at
        idle, seen.idle = seen.idle, 0
        if ttft_s is not None and ttft_s > 0:
            seen.ttft.add(context, in_flight, ttft_s)
            _compare(own.ttft, seen.ttft, context, in_flight, ttft_s, 1.0)
        if tpot_s is not None and tpot_s > 0 and tokens >= SHORT:
            weight = min(1.0, tokens / _STEADY)
            law = seen.tpot.law()
            if law is not None and (idle or law.weight < _SETTLED):
                usual = law.mean_at(context, in_flight) * own.tpot.estimate(seen.tpot.epoch).mean
                if tpot_s < _QUICKER * usual:
                    # Noise makes a stream slower, never quicker than the target can: no need to
                    # wait for more of them.
                    seen.tpot.start_anew()
            seen.tpot.add(context, in_flight, tpot_s, weight)
            _compare(own.tpot, seen.tpot, context, in_flight, tpot_s, weight)
        if self.heard is not None:
            self.heard(("pace", target, traffic, ttft_s, tpot_s, tokens, context, in_flight))

    def whole(
        self,
        target: str,
        traffic: str,
        *,
        total_s: float,
        tokens: int,
        prompt_tokens: int = 0,
        in_flight: float = 0,
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
        if self.heard is not None:
            self.heard(("first_pace", target, ttft_s, tpot_s))

    def answer(self, target: str, traffic: str, tokens: int, at: float = 0.0) -> None:
        """The length of a finished answer, however it came about."""
        if tokens < 1:
            return
        for name in lineage(traffic):
            own = self.own_class(target, name)
            own.answer.add(tokens)
            own.seen_at = at
        if self.heard is not None:
            self.heard(("answer", target, traffic, tokens))

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
        if self.heard is not None:
            self.heard(("verify_time", target, how, seconds, context, k))

    def draft_time(self, drafter: str, seconds: float, at: float = 0.0) -> None:
        """Seconds per drafted token, timed outside any request."""
        seen = self.drafts[drafter]
        seen.token.add(seconds)
        seen.seen_at = at
        if self.heard is not None:
            self.heard(("draft_time", drafter, seconds))

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
        if self.heard is not None:
            self.heard(("first_draft", drafter, seconds, context, drafted))

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
        start: int = 0,
        answer: object = None,
        at: float = 0.0,
    ) -> None:
        """One verification round. ``how``: who judged; kinds that differ in it share nothing but
        the draft's time. ``draft_s``, ``verify_s``: ``None`` where a round doesn't tell (the first
        draft also reads the prompt; lanes are no scoring request). ``verify_s`` is without the
        ``draws_s`` seconds of the ``draws`` tokens that the rules asked for. ``temperature``: the
        draft's, where it was sampled. ``start``: drafted tokens accepted before it in the same run
        (of rounds in flight): its own are at the positions after those. ``answer`` tells answers
        apart, whose rounds are alike; see :meth:`over`. ``None``: not known, each round counts by
        itself."""
        self.passed(target, drafter, traffic, accepted, judged, start, how, temperature, answer, at)
        if verify_s is not None:
            self.verify_time(target, how, verify_s, context=context, k=drafted, at=at)
            self.drew(target, how, judged, draws, draws_s, at)
        if drafted and draft_s is not None:
            self.draft_time(drafter, draft_s / drafted, at)

    def passed(
        self,
        target: str,
        drafter: str,
        traffic: str,
        accepted: int,
        judged: int,
        start: int,
        how: str,
        temperature: float | None,
        answer: object,
        at: float = 0.0,
    ) -> None:
        """What passed of a round's draft, and no time; as in :meth:`round`."""
        rounds = self.rounds_of(target, drafter, how, traffic)
        rounds.add(accepted, judged, start=start, answer=answer, at=at)
        if temperature:
            key = (target, drafter, how, round(temperature, 2))
            found = self.temperatures.get(key)
            if found is None:
                make_room(self.temperatures, 256)
                found = self.temperatures[key] = Rounds()
            found.add(accepted, judged, start=start, answer=answer, at=at)
        if self.heard is not None:
            seen = (accepted, judged, start)
            self.heard(("passed", target, drafter, traffic, how, temperature, answer, seen))

    def drew(
        self,
        target: str,
        how: str,
        judged: int,
        draws: int,
        draws_s: float | None,
        at: float = 0.0,
        *,
        rounds: int = 1,
    ) -> None:
        """The tokens that the rules asked the target for in ``rounds`` rounds, and the seconds of
        all of them (``None``: not known)."""
        seen = self.judged[target, how]
        seen.seen_at = at
        if judged:
            seen.draws.add(draws, judged)
        if draws_s is not None:
            seen.drawing.add(draws_s / rounds, rounds)
            if draws:
                seen.draw.add(draws_s / draws)
        if self.heard is not None:
            self.heard(("drew", target, how, judged, draws, draws_s))

    def shadowed(
        self,
        target: str,
        drafter: str,
        traffic: str,
        rounds: Sequence[tuple[int, int]],
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
        if self.heard is not None:
            self.heard(("shadowed", target, drafter, traffic, how, weight, rounds))

    def over(self, target: str, drafter: str, traffic: str, answer: object, how: str = "") -> None:
        """The answer that rounds were counted for has ended. Changes are told from whole answers,
        so they are seen only after this."""
        found = self.rounds.get((target, drafter, how, traffic))
        if found is not None:
            found.over(answer)
        if self.heard is not None:
            self.heard(("over", target, drafter, traffic, how, answer))

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
                    make_room(self.predictions, MOST_CLASSES)
                    found = self.predictions[target, drafter, name] = Prediction()
                found.taken.add(accepted / drafted)
                found.sent.add(drafted)
                if tpot_s:
                    found.tpot.add(tpot_s)
                found.seen_at = at
            if self.heard is not None:
                self.heard(("predicted", target, drafter, traffic, drafted, accepted, tpot_s))

    def planned(
        self, target: str, drafter: str, traffic: str, *, tried: bool, how: str = ""
    ) -> None:
        """A plan was made; ``tried``: with speculation. What isn't tried is less and less sure, and
        so is plain's pace while speculation is all that is tried."""
        key = (target, drafter, traffic)
        if key not in self.since:
            make_room(self.since, MOST_CLASSES)
        since = self.since[key] = 0 if tried else self.since[key] + 1
        if tried:
            seen = self.targets[target]
            seen.idle += 1
            if seen.idle == 1:
                timed = self.judged.get((target, how))
                taken = None if timed is None else round_law_now(seen, timed)
                seen.beside = None if taken is None else (how, taken)
            if seen.idle % _RESTED == 0:
                for law in (seen.ttft, seen.tpot):
                    if law.weight > 1.0:
                        law.forget(_FADES**_RESTED)
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
        return read(self, target, drafter, traffic, how, prompt_tokens)

    def crowd(self, target: str, drafter: str, *, speculates: bool = False) -> Crowd:
        """The requests under way beside one that has begun; ``speculates``: it makes rounds."""
        seen = self.targets.get(target)
        if seen is None or seen.in_flight < 2:
            return NOBODY
        drafting = self.drafts[drafter].crowd
        late = self.turns.per_round()
        return seen.crowd.frozen(target, drafting, speculates=speculates, late_s=late)


def _compare(
    factor: Factor, law: Regression, x: float, y: float, value: float, weight: float
) -> None:
    found = law.law()
    if found is not None and law.weight >= _SETTLED:
        factor.add(value / max(found.mean_at(x, y), 1e-9), law.epoch, weight)

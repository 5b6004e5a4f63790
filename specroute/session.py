"""One request's state while it is being speculated on: the answer, the rounds, the clocks.

Methods and the engine read and write it; it decides nothing itself but what a figure means.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from specroute.acceptance import Drawn, Lossy, Request, Server
from specroute.answer import Delta
from specroute.candidates import Judge
from specroute.context import Committed
from specroute.continuing import Continuing
from specroute.drafting import Drafting
from specroute.errors import DeadlineExceeded, LimitReached, ProviderError, StatusError
from specroute.events import Commit, RoundDone
from specroute.ledger import Price
from specroute.measure import Measurements, Snapshot
from specroute.measure.together import Member, alone
from specroute.meter import Meter, look
from specroute.policy.base import Policy, RoundView
from specroute.policy.checked import checked_k
from specroute.target.learned import Trusted, says_nothing
from specroute.target.scoring import draw, score
from specroute.target.stream import Piece
from specroute.target.timing import timed
from specroute.target.view import BadEvidence, View
from specroute.types import Exactness, Method

SCORED = (Method.SCORE, Method.CASCADE)
"""Methods whose drafts the target scores: what is measured of one holds for the other."""
UNSCORED = (Method.JUDGE, Method.RACE, Method.HEDGE)
"""Methods for which nothing need be known of the target's scoring."""
UNRENDERED = (Method.PREDICT, *UNSCORED)
"""Methods that use the caller's own request: the target renders it."""

HASTY = 3.0
"""Times the usual seconds of a scoring request within which a deadline is short for one."""


@dataclass(slots=True, kw_only=True)
class Session(Drafting):
    """Everything about one request that more than one step needs."""

    policy: Policy
    measurements: Measurements
    traffic: str
    """The traffic class its figures are kept under."""
    rng: random.Random
    price_of: Callable[[str], Price | None] = lambda target: None
    """The price of a ``provider:model``."""
    prompt_tokens: int | None = None
    """As the target's own usage would show them, where ``prompt`` has no ids to count."""
    judge: Judge | None = None
    """Who judges in ``score``."""
    trusted: Trusted | None = None
    """The dialect that this judge needs, and the form of its context, as they were at the start."""
    scores_by_ids: bool = True
    """Drafts are scored as token ids; else as text."""
    server: Server = field(default_factory=Server)
    """What the target can be asked for in the middle of judging."""
    lossy: Lossy | None = None
    min_accept: float = 0.7
    """In ``judge`` and ``race``: the share of the draft that must be found good."""
    hedge: float = 0.05
    """In ``hedge``: the share of requests that a second one may be sent for."""
    loose: bool = False
    """Lanes may follow words that only resemble the draft's (``match = "loose"``)."""
    redrawn: str | None = None
    """Why the answer is biased, whoever goes on with it."""
    member: Member = field(default_factory=alone)
    """It among the requests that follow the same plan."""
    clock: Callable[[], float] = perf_counter
    _last: tuple[int, int] | None = None
    """(drafted, accepted) of the last round."""
    _began: float | None = None
    """When the first round's K was asked for."""

    def __post_init__(self) -> None:
        self.meter = Meter(
            self.measurements,
            str(self.target.ref),
            self.traffic,
            measured_as(self.plan.method, self.judge),
            prompt_per_token=self.judge is Judge.DRAWS,
        )

    @property
    def context(self) -> int:
        """Tokens of prompt and committed answer, as far as they are known."""
        ids = self.prompt.ids
        return (len(ids) if ids is not None else self.prompt_tokens or 0) + self.answer.tokens

    @property
    def sampling(self) -> Mapping[str, Any]:
        """The caller's own sampling fields, for tokens that the target generates itself."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed")
        body = self.request.body
        return {name: body[name] for name in names if body.get(name) is not None}

    def snapshot(self) -> Snapshot:
        """The figures for this request's target, drafter and class as they were when it began, with
        its context then and its prices."""
        price = self.price_of(str(self.target.ref))
        billed = self.draft_targets.get(self.drafter.name)
        draft = None if billed is None else self.price_of(billed)
        return self.meter.figures(self.drafter.name, self.context, price, draft)

    def survival(self, k: int) -> tuple[float, ...]:
        """S(1..k): measured, and updated by this request's own rounds."""
        return self.meter.own.survival(k, self.snapshot().acceptance)

    def next_k(self) -> int:
        """K of the next round, by the policy; never more than ``max_tokens`` leaves room for."""
        now = self.clock()
        if self._began is None:
            self._began = now
        look(self.meter.measurements.turns)
        k, wrong = checked_k(
            self.policy,
            RoundView(
                rounds=self.tally.rounds,
                committed=self.answer.tokens,
                remaining=self.answer.remaining,
                own=self.meter.own,
                verify_s=self.meter.verify_s,
                draft_s=self.meter.draft_s,
                plan=self.plan,
                context=self.context,
                last=self._last,
                seconds=now - self._began,
            ),
            self.snapshot(),
        )
        if wrong and wrong not in self.notes:
            self.notes.append(wrong)
        remaining = self.answer.remaining
        limit = self.target.learned.max_context
        if remaining is not None:
            k = min(k, remaining - 1)
        if limit is not None:
            k = min(k, limit - self.context - 1)
        return max(k, 0)

    @property
    def using(self) -> Trusted:
        """The dialect that this request's judge needs, and the form of its context."""
        if self.trusted is None or not self.target.learned.trusts(self.trusted):
            # Another request has just found it out.
            reason = self.target.learned.reason
            raise BadEvidence(reason or "the target's scoring is no longer trusted")
        return self.trusted

    @property
    def top_n(self) -> int:
        """N: the alternatives asked for at each position."""
        return min(self.target.capabilities.echo_max_logprobs or 1, 20)

    async def score(
        self, draft: Sequence[int] | str, *, logprobs: int, after: Committed | None = None
    ) -> View:
        """The target's view of ``draft`` after what is committed, or after ``after``."""
        first = not self.answer.tokens and not (after and after.ids)
        with self.meter.scoring(self.context, len(draft)) as used:
            view = await score(
                self.target,
                self.using,
                self.prompt,
                after or self.committed,
                draft,
                logprobs=logprobs,
                sampling=self.sampling,
                book=self.book,
                deadline=self.optional_deadline,
            )
            used(view.usage)
        if first:
            counted = (view.usage.prompt_tokens or 0) - len(view.positions)
            self.prompt_tokens = view.before or max(counted, 0) or None
        return view

    async def draw(self, request: Request, drafted: Sequence[int]) -> list[Drawn]:
        """Draws that an acceptance rule asks for, after what is committed and ``drafted``."""
        started = self.clock()
        try:
            return await draw(
                self.target,
                request,
                self.prompt,
                (*(self.answer.ids or ()), *drafted),
                sampling=self.sampling,
                book=self.book,
                deadline=self.optional_deadline,
            )
        finally:
            self.meter.drew(self.clock() - started)

    def refuse(self, reason: str) -> None:
        """Evidence failed: this request's dialect is not used again at this target. One that
        another request has refused already says nothing of those that took its place."""
        learned = self.target.learned
        if self.trusted is not None and learned.trusts(self.trusted):
            learned.refuse(reason, self.trusted[0].name)

    def redraws(self, reason: str) -> None:
        """A token whose judgement was begun, or that was drawn, is drawn anew by whoever goes on:
        biased, even where nothing is committed and the request goes plain from its start."""
        self.redrawn = reason
        self.loosen(Exactness.HEURISTIC, reason)

    def draws_failed(self, error: Exception) -> None:
        """What a rule asked the target for did not come. An answer that is none is remembered; a
        call that failed for reasons of its own only lets the target rest."""
        if isinstance(error, ProviderError) and not (
            isinstance(error, StatusError) and not says_nothing(error.status)
        ):
            self.rest(error)
        else:
            self.target.learned.no_draws = str(error)

    def rest(self, error: ProviderError) -> None:
        """A scoring call failed: the target is not scored on for a while. A limit of the config
        says nothing of the target, nor does a caller who has no time for a round."""
        if isinstance(error, LimitReached):
            return
        short = HASTY * (self.snapshot().verify_s or 0.0)
        if isinstance(error, DeadlineExceeded) and error.seconds < short:
            return
        self.target.learned.rest(self.deadline.clock(), f"a call failed lately: {error}")

    def apply(self, commit: Commit) -> Delta:
        """As :meth:`Continuing.apply`; what was planned is measured by it."""
        before = self.answer.tokens
        # A dataclass with slots is made anew: super() would not find itself.
        delta = Continuing.apply(self, commit)
        self.member.brought(self.answer.tokens - before)
        return delta

    def round(self, done: RoundDone) -> None:
        """Enter one round into the tally and the measurements."""
        self.tally.rounds += 1
        self.tally.drafted += done.drafted
        self.tally.accepted += done.accepted
        self.tally.rejected += done.judged - done.accepted
        self._last = (done.drafted, done.accepted)
        self.meter.round(done, self.drafter.name, self._sampled_at)

    @property
    def predicted_tokens(self) -> int:
        """How long a prediction may be, in tokens: as planned, and no longer than the answer."""
        remaining = self.answer.remaining
        return self.plan.k if remaining is None else min(self.plan.k, remaining)

    @property
    def longest(self) -> int:
        """How long a draft of the whole answer may be: as planned, no longer than the answer and
        one token of the target's own leave room for, in the context as well."""
        room = self.predicted_tokens
        remaining, limit = self.answer.remaining, self.target.learned.max_context
        if remaining is not None:
            room = min(room, remaining - 1)
        if limit is not None:
            room = min(room, limit - self.context - 1)
        return max(room, 0)

    def stream(
        self, purpose: str, *, show_tokens: bool = False, predicted: str = ""
    ) -> AsyncGenerator[Piece]:
        """The target's own answer from the end of what is committed. Its pace is measured, unless
        a prediction sets it or the figures are another target's."""
        context = self.context
        # A dataclass with slots is made anew: super() would not find itself.
        stream = Continuing.stream(self, purpose, show_tokens=show_tokens, predicted=predicted)
        if predicted or self.resumed:
            return stream
        stream = timed(stream, self.clock, lambda pace: self.meter.paced(pace, context))
        return self.meter.heard(stream)

    async def aclose(self) -> None:
        """Give the draft's memory back; idempotent."""
        self.meter.over()
        while self._drafting:  # Cancelled amid it, whoever calls again goes on with the others.
            name, drafting = self._drafting.popitem()
            try:
                await drafting.aclose()
            except Exception as error:  # noqa: BLE001 - a drafter's own; the answer is there
                self.notes.append(f"draft {name!r} was not closed: {type(error).__name__}: {error}")


def measured_as(method: Method, judge: Judge | None) -> str:
    """What a method's rounds are measured as: kinds that differ in it share no acceptance."""
    return str(judge) if method in SCORED and judge is not None else str(method)

"""Many requests at a time at one target and one drafter, in virtual time.

Plans, drafts, scores, commits and measures as a client does, with its own policy and measurement
objects; the target and the drafter step all that is there together (``stepping``). Knows arrivals
and what each request took. Knows no policy by name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from specroute.candidates import PLAIN, Candidate, Candidates
from specroute.measure import AcceptanceCounts, Mean, Measurements, Snapshot
from specroute.measure.crowd import NOBODY, Crowding, Pulse
from specroute.measure.drafting import Mark
from specroute.policy.account import Account
from specroute.policy.base import Accounting, Ask, Forecast, Policy, RoundView
from specroute.policy.forecast import plain_call
from specroute.simulate.stepping import Clock, Sequence, Stepping
from specroute.simulate.world import runs_of
from specroute.speculation.planning import Chosen
from specroute.speculation.reckoning import Reckoning
from specroute.types import Attempt, Exactness, Method, Usage

TARGET, DRAFTER, TRAFFIC, HOW = "sim:target", "draft", "", "argmax"
SCORE = Candidate(Method.SCORE, DRAFTER, Exactness.EXACT)
ABLE = Candidates((PLAIN, SCORE))
CALIBRATIONS = 3
WARM = 1 / 3


@dataclass(frozen=True, slots=True)
class Server:
    """As the reference server's pace: a step takes ``max(tpot, load · sequences)``, and every
    prompt token it reads 1 / ``prefill``."""

    name: str
    tpot: float = 0.02
    load: float = 0.0025
    prefill: float = 20000.0
    rtt: float = 0.01
    rereads: bool = False
    """A scoring request's context is read again; else it is cached."""

    def step(self, prompt: float, sequences: int) -> float:
        return prompt / self.prefill + max(self.tpot, self.load * sequences)


@dataclass(frozen=True, slots=True)
class Drafts:
    """A step of the batched drafter takes ``base + each · drafts``."""

    name: str
    base: float = 0.001
    each: float = 0.0

    def step(self, prompt: float, drafts: int) -> float:
        return self.base + self.each * drafts


@dataclass(frozen=True, slots=True)
class Rush:
    """Requests that arrive at ``times`` the rate at which the server could answer plain ones."""

    server: Server
    drafts: Drafts
    times: float
    alpha: float = 0.8
    requests: int = 300
    prompt: int = 150
    tokens: int = 80
    warm: int = 60
    """Requests before the rush, at a third of what the server can answer."""
    foreign: int = 0
    """Sequences of others that are at the server all the time."""
    seed: int = 1

    @property
    def capacity(self) -> float:
        """Plain requests a second."""
        return 1 / (self.tokens * self.server.load + self.prompt / self.server.prefill)


@dataclass(frozen=True, slots=True)
class Rushed:
    """What became of a rush. Seconds from each request's arrival."""

    seconds: tuple[float, ...]
    throughput: float
    """Tokens a second, from the first arrival to the last answer."""
    k: float
    """Tokens drafted a round; 0 without rounds."""
    speculated: float
    """The share of the tokens that rounds committed."""

    @property
    def mean(self) -> float:
        """Seconds."""
        return fmean(self.seconds)

    def quantile(self, q: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Crowded:
    """One policy through one rush. ``alone``: it is shown no crowd, as if each request were the
    only one."""

    def __init__(self, rush: Rush, policy: Policy, *, alone: bool = False) -> None:
        self.rush, self.policy, self.alone = rush, policy, alone
        self.clock = Clock()
        foreign = rush.foreign
        step = rush.server.step
        self.target = Stepping(self.clock, lambda prompt, n: step(prompt, n + foreign))
        self.drafter = Stepping(self.clock, rush.drafts.step)
        self.seen = Measurements()
        self.chosen = Chosen(policy, Exactness.EXACT)
        self.rng = random.Random(f"policy {rush.seed}")
        self.seconds: list[float] = []
        self.rounds = self.drafted = self.spoken = 0
        self._calibrate()

    def _calibrate(self) -> None:
        """As a client does beside its first request, before the rush."""
        server, prompt = self.rush.server, 20
        for _ in range(CALIBRATIONS):
            took = server.rtt + server.step(prompt, 1 + self.rush.foreign)
            self.seen.verify_time(TARGET, HOW, took, context=prompt, k=4)
        tpot = server.step(0, 1 + self.rush.foreign)
        self.seen.first_pace(TARGET, ttft_s=server.rtt + tpot, tpot_s=tpot)
        self.seen.draft_time(DRAFTER, self.rush.drafts.step(0, 1))

    def run(self) -> Rushed:
        """All of its requests, to the last one's end."""
        rush = self.rush
        rng = random.Random(f"arrivals {rush.seed}")
        at = 0.0
        began = 0.0
        for i in range(-rush.warm, rush.requests):
            at += rng.expovariate((rush.times if i >= 0 else WARM) * rush.capacity)
            began = at if i <= 0 else began
            self.clock.after(at, partial(_Request(self, i).begin))
        self.clock.run()
        return Rushed(
            tuple(self.seconds),
            rush.requests * rush.tokens / (self.clock.now - began),
            self.drafted / self.rounds if self.rounds else 0.0,
            self.spoken / (rush.requests * rush.tokens),
        )

    def figures(self, candidate: Candidate, prompt: int) -> Snapshot:
        """What a policy sees."""
        doing = candidate.target, candidate.method, candidate.drafter
        room = self.seen.room(TARGET, doing, self.clock.now)
        score = candidate.method is Method.SCORE
        found = self.seen.snapshot(
            TARGET,
            DRAFTER if score else "",
            TRAFFIC,
            HOW if score else "plain",
            prompt_tokens=prompt,
        )
        found = replace(found, context=prompt)
        return replace(found, crowd=NOBODY) if self.alone else replace(found, room=room)


class _Request:
    def __init__(self, among: Crowded, i: int) -> None:
        self.among, self.i = among, i
        rush = among.rush
        rng = random.Random(f"{rush.seed} request {i}")
        self.runs = runs_of([rng.random() < rush.alpha for _ in range(rush.tokens)])
        self.at = self.sent = 0
        self.calls: list[Attempt] = []
        self.own, self.verify, self.draft = AcceptanceCounts(), Mean(0.8, most=2), Mean(0.8, most=2)
        self.last: tuple[int, int] | None = None
        self.first: float | None = None

    @property
    def crowd(self) -> Crowding:
        return self.among.seen.targets[TARGET].crowd

    def now(self) -> float:
        return self.among.clock.now

    def begin(self) -> None:
        among, rush = self.among, self.among.rush
        self.arrived = self.now()
        among.seen.begin(TARGET, self.now(), rush.prompt)
        self.mark = self.crowd.mark(self.now())
        key = (TARGET, TRAFFIC)
        ask = Ask(rush.prompt, account=among.chosen.account(key))
        known = {each: among.figures(each, rush.prompt) for each in ABLE.plans}
        self.plan = among.policy.plan(ask, ABLE, known.__getitem__, among.rng)
        self.ended: Callable[[object], None] = lambda _: None
        if self.plan.trial or self.plan.yardstick or self.plan.strays:
            self.ended = among.chosen.begin(key, self.plan)
        tried = self.plan.method is Method.SCORE
        if tried or not among.seen.tried_now(TARGET, DRAFTER):
            among.seen.planned(TARGET, DRAFTER, TRAFFIC, tried=tried, how=HOW)
        if tried:
            self.reckoning = Reckoning(self.plan, lambda: known[PLAIN], rush.prompt)
            self.member = among.seen.joins(TARGET, self.plan.key, self.now, self.due, rush.tokens)
            self.snapshot = known[SCORE]
            self.crowd.speculates(self.now(), True)
            self.next_round()
        else:
            self.stream()

    def due(self, tokens: int, first: bool) -> float | None:
        return self.reckoning.due(tokens, first, self.crowd)

    # --- rounds -----------------------------------------------------------------------------

    def next_round(self) -> None:
        among, rush = self.among, self.among.rush
        left = rush.tokens - self.at
        crowd = NOBODY
        if not among.alone:
            crowd = among.seen.crowd(TARGET, DRAFTER, speculates=True)
        context = rush.prompt + self.at
        view = RoundView(
            self.sent, self.at, left, self.own.frozen(), self.verify.value, self.draft.value,
            self.plan, context, self.last,
        )  # fmt: skip
        k = among.policy.next_k(view, replace(self.snapshot, context=context, crowd=crowd))
        k = min(k, left - 1)
        if k <= 0 and left > 1:
            self.crowd.speculates(self.now(), False)
            self.over()
            self.member.end()
            among.chosen.has_tried(self.plan, (TARGET, TRAFFIC))
            self.stream()
            return
        self.drafting_at = self.now()
        if k <= 0:
            self.score(0)
            return
        mark = among.seen.drafts[DRAFTER].crowd.begin(self.now())
        among.drafter.submit(Sequence(0.0, k, _nothing, partial(self.drafted, k, mark)))

    def drafted(self, k: int, mark: Mark) -> None:
        self.among.seen.drafts[DRAFTER].crowd.end(self.now(), k, mark)
        self.score(k)

    def score(self, k: int) -> None:
        among, rush = self.among, self.among.rush
        self.scoring_at = self.now()
        read = rush.prompt + self.at if rush.server.rereads or not self.sent else 0
        self.crowd.scoring(self.now(), (read if self.sent else 0) + k)
        half = rush.server.rtt / 2
        answered = partial(among.clock.after, half, partial(self.scored, k))
        sequence = Sequence(read + k, 1, _nothing, answered)
        among.clock.after(half, partial(among.target.submit, sequence))

    def scored(self, k: int) -> None:
        among, rush = self.among, self.among.rush
        self.crowd.scored(self.now())
        accepted = min(self.runs[self.at], k)
        drafting, took = self.scoring_at - self.drafting_at, self.now() - self.scoring_at
        self.own.add(accepted, accepted + (accepted < k))
        self.verify.add(took)
        if k and self.sent:
            self.draft.add(drafting / k, k)
        among.seen.round(
            TARGET, DRAFTER, TRAFFIC, drafted=k, accepted=accepted,
            judged=accepted + (accepted < k), draft_s=drafting if self.sent else None,
            verify_s=took, how=HOW, context=rush.prompt + self.at, answer=self.i, at=self.now(),
        )  # fmt: skip
        self.crowd.committed(accepted + 1)
        if self.i >= 0:
            among.rounds, among.drafted = among.rounds + 1, among.drafted + k
            among.spoken += accepted + 1
        self.read(k, "score")
        self.last = (k, accepted)
        self.sent, self.at = self.sent + 1, self.at + accepted + 1
        self.member.brought(accepted + 1)
        if self.at >= rush.tokens:
            self.crowd.speculates(self.now(), False)
            self.over()
            self.member.end()
            self.answered()
        else:
            self.next_round()

    def read(self, drafted: int, purpose: str) -> None:
        """What usage shows of a request's prompt: all of it is new to the server at first."""
        again = not self.among.rush.server.rereads and bool(self.sent)
        prompt = self.among.rush.prompt + self.at
        usage = Usage(prompt + drafted, 1, prompt if again else 0)
        self.calls.append(Attempt(TARGET, purpose, "ok", 0.0, usage, drafted=drafted))
        if purpose == "score" and self.sent:
            self.crowd.reread(0.0 if again else 1.0)

    def over(self) -> None:
        self.among.seen.over(TARGET, DRAFTER, TRAFFIC, self.i, HOW)

    # --- the plain stream -------------------------------------------------------------------

    def stream(self) -> None:
        among, rush = self.among, self.among.rush
        self.began, self.context = self.now(), rush.prompt + self.at
        self.pulse = Pulse(self.crowd, self.now)
        read = self.context if rush.server.rereads or not self.sent else self.at
        half = rush.server.rtt / 2
        ended = partial(among.clock.after, half, self.streamed)
        sequence = Sequence(read, rush.tokens - self.at, self.token, ended)
        among.clock.after(half, partial(among.target.submit, sequence))

    def token(self) -> None:
        self.first = self.now() if self.first is None else self.first
        self.pulse(1)

    def streamed(self) -> None:
        rush, seen = self.among.rush, self.among.seen
        tokens = rush.tokens - self.at
        self.pulse.end(tokens)
        self.read(0, "plain" if not self.sent else "handover")
        assert self.first is not None
        half = rush.server.rtt / 2
        seen.pace(
            TARGET, TRAFFIC, ttft_s=self.first + half - self.began,
            tpot_s=(self.now() - half - self.first) / (tokens - 1) if tokens > 1 else None,
            tokens=tokens, context=self.context,
            in_flight=self.crowd.others_since(self.mark, self.now()), at=self.now(),
        )  # fmt: skip
        self.answered()

    def answered(self) -> None:
        among, rush = self.among, self.among.rush
        among.seen.attempted(self.calls, self.now())
        among.seen.answer(TARGET, TRAFFIC, rush.tokens, self.now())
        took = self.now() - self.arrived
        beside = self.crowd.others_since(self.mark, self.now())
        if self.i >= 0:
            among.seconds.append(took)
        among.seen.end(TARGET, self.now())
        self.ended(None)
        policy, chosen = among.policy, among.chosen
        if isinstance(policy, Accounting) and self.plan.plain is not None:
            key = (TARGET, TRAFFIC)
            figures = replace(among.figures(PLAIN, rush.prompt), in_flight=beside)
            plain = plain_call(figures, rush.prompt, rush.tokens) or self.plan.plain
            account = chosen.accounts.get(key, Account())
            chosen.accounts[key] = policy.settle(account, self.plan, Forecast(took), plain)


def _nothing() -> None:
    pass


def rushed(rush: Rush, policy: Policy, *, alone: bool = False) -> Rushed:
    """What becomes of a rush under a policy."""
    return Crowded(rush, policy, alone=alone).run()

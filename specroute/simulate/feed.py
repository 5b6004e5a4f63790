"""From simulated requests to ``Measurements``: the calls that a live client makes, no others.

Knows which figures a client sees, and when. Knows no policy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from specroute.candidates import Candidate
from specroute.measure import MAX_K, Measurements, Snapshot
from specroute.shadow_rounds import AHEAD, MOST_DRAFTED, STEP
from specroute.simulate.world import World
from specroute.types import Attempt, Method, Usage

HOW = "argmax"
SHADOW_SHARE = 0.05
"""Of the time, for drafting beside finished answers: a config's default."""
CALIBRATIONS = 3
"""Scoring requests that are timed while the first request is answered."""


class Feed:
    """The measurements of one simulated client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.measurements = Measurements()
        self.at = 0.0
        """Virtual seconds."""
        self._calibrated = False
        self._ready_at: dict[str, float] = {}
        """By draft: no shadow evidence before; drafting may take no more than its share of the
        time, an equal part of which is each draft's own."""

    def figures(self, i: int, candidate: Candidate) -> Snapshot:
        """What a policy sees for request i."""
        target = candidate.target or self.world.targets[0]
        how = HOW if candidate.method is Method.SCORE else str(candidate.method)
        context = self.world.context(i)
        found = self.measurements.snapshot(
            target,
            candidate.drafter or "",
            self.world.traffic(i),
            how,
            prompt_tokens=context,
        )
        prices = self.world.prices(target)
        if prices is None:
            return replace(found, context=context)
        usd_in, usd_out, usd_cached = prices
        return replace(
            found, context=context, usd_in=usd_in, usd_out=usd_out, usd_cached=usd_cached
        )

    def planned(self, i: int, candidate: Candidate) -> None:
        """A plan was made for request i."""
        traffic = self.world.traffic(i)
        target = candidate.target or self.world.targets[0]
        for drafter in self.world.drafters:
            tried = candidate.method is not Method.PLAIN and candidate.drafter == drafter.name
            self.measurements.planned(target, drafter.name, traffic, tried=tried, how=HOW)

    def round(
        self,
        target: str,
        drafter: str,
        drafted: int,
        accepted: int,
        draft_s: float | None,
        verify_s: float,
        context: int,
        i: int,
        *,
        temperature: float | None = None,
        refused: bool,
        start: int = 0,
    ) -> None:
        """One scoring round of request i; ``draft_s=None``: its first draft also reads the
        prompt. ``refused``: the token after the accepted ones was; ``start``: accepted tokens of
        the same run before it."""
        self.measurements.round(
            target,
            drafter,
            self.world.traffic(i),
            drafted=drafted,
            accepted=accepted,
            judged=accepted + refused,
            draft_s=draft_s,
            verify_s=verify_s,
            how=HOW,
            context=context,
            start=start,
            temperature=temperature,
            answer=i,
            at=self.at,
        )

    def over(self, target: str, drafter: str, i: int) -> None:
        """Request i makes no more rounds."""
        self.measurements.over(target, drafter, self.world.traffic(i), i, HOW)

    def answered(
        self,
        i: int,
        target: str,
        *,
        ttft_s: float | None,
        tpot_s: float,
        streamed: int,
        context: int,
        rounds: tuple[int, int],
        drafter: str | None,
    ) -> None:
        """An answer has ended, of whose tokens ``streamed`` came in a plain stream that began after
        ``context`` tokens. ``rounds``: prompt tokens of its scoring requests and of the stream
        that took over, and cached ones."""
        tokens, traffic = self.world.tokens(i), self.world.traffic(i)
        if ttft_s is not None:
            self.measurements.pace(
                target,
                traffic,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                tokens=streamed,
                context=context,
                at=self.at,
            )
        self.measurements.answer(target, traffic, tokens, self.at)
        prices = self.world.prices(target)
        if prices is not None and prices[2] is not None:
            self._billed(target, self.world.context(i), streamed == tokens, rounds)
        if streamed == tokens and not self._calibrated:
            self._calibrate(i)
        if self.world.shadow:
            self._shadow(i, target, drafter)

    def _billed(self, target: str, prompt: int, plain: bool, rounds: tuple[int, int]) -> None:
        """What usage showed. What follows a request's first scoring request is entered as one."""
        counts = [(prompt, 0), (rounds[0] - prompt, rounds[1])]
        self.measurements.attempted(
            [
                Attempt(target, "plain" if plain else "score", "ok", 0.0, Usage(n, 0, cached))
                for n, cached in counts[: 1 if plain or rounds[0] <= prompt else 2]
            ],
            self.at,
        )

    def _calibrate(self, i: int) -> None:
        """As a client does beside its first request: the drafters' speed, and scoring requests."""
        self._calibrated = True
        for target in self.world.targets:
            for n in range(CALIBRATIONS):
                seconds = self.world.round_s(i, n + 1, 4, target)
                self.measurements.verify_time(target, HOW, seconds, k=4, at=self.at)
            self.measurements.first_pace(
                target,
                ttft_s=self.world.ttft(i, CALIBRATIONS + 1, target),
                tpot_s=self.world.tpot(i, target),
            )
        for drafter in self.world.drafters:
            self.measurements.draft_time(drafter.name, drafter.token_s)

    def _shadow(self, i: int, target: str, used: str | None) -> None:
        """What each drafter but the one in use would have had accepted, from the starts that
        rounds would have had, as ``shadow`` and ``shadow_rounds`` do it. It takes the time of
        drafting."""
        share, traffic = SHADOW_SHARE / len(self.world.drafters), self.world.traffic(i)
        for drafter in self.world.drafters:
            if drafter.name == used or self.at < self._ready_at.get(drafter.name, 0.0):
                continue
            rng = random.Random(f"shadow {self.world.seed} {i} {drafter.name}")
            rounds, drafted = _replayed(self.world.runs(i, drafter, target), rng)
            spent = drafted * drafter.token_s + self.world.context(i) * drafter.read_s
            self.measurements.shadowed(target, drafter.name, traffic, rounds, how=HOW, at=self.at)
            self._ready_at[drafter.name] = self.at + spent / share


def _replayed(runs: Sequence[int], rng: random.Random) -> tuple[list[tuple[int, int]], int]:
    """((accepted, judged) of each round, tokens drafted) of one answer, gone into at any place; the
    round there isn't counted, since no real one need have started there."""
    at = rng.randrange(max(len(runs) - AHEAD, 0) + 1)
    counts, rounds, drafted = not at, [], 0
    while at < len(runs) and drafted < MOST_DRAFTED:
        accepted = min(runs[at], MAX_K)
        censored = at + accepted >= len(runs) or accepted == MAX_K
        drafted += min(-(-(accepted + 1) // STEP) * STEP, MAX_K)
        if counts:
            rounds.append((accepted, accepted + (not censored)))
        counts = True
        at += accepted + 1
    return rounds, drafted

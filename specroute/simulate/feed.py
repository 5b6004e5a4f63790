"""From simulated requests to ``Measurements``: the calls that a live client makes, no others.

Knows which figures a client sees, and when. Knows no policy.
"""

from __future__ import annotations

from dataclasses import replace

from specroute.candidates import PLAIN, Candidate
from specroute.measure import MAX_K, Measurements, Snapshot
from specroute.simulate.scenario import DRAFTERS, FIRST, Target
from specroute.simulate.world import World
from specroute.types import Attempt, Method, Usage

TRAFFIC = ""
HOW = "argmax"
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

    def figures(self, i: int, candidate: Candidate) -> Snapshot:
        """What a policy sees for request i."""
        target = target_named(self.world, candidate.target)
        how = HOW if candidate.method is Method.SCORE else str(candidate.method)
        context = self.world.contexts[i]
        found = self.measurements.snapshot(
            target.name, candidate.drafter or "", TRAFFIC, how, prompt_tokens=context
        )
        usd_in, usd_out, usd_cached = self.world.prices(target)
        return replace(
            found, context=context, usd_in=usd_in, usd_out=usd_out, usd_cached=usd_cached
        )

    def planned(self, candidate: Candidate) -> None:
        """A plan was made for the next request."""
        target = target_named(self.world, candidate.target)
        for drafter in DRAFTERS:
            tried = candidate.method is not Method.PLAIN and candidate.drafter == drafter.name
            self.measurements.planned(target.name, drafter.name, TRAFFIC, tried=tried, how=HOW)

    def round(
        self,
        target: Target,
        drafter: str,
        drafted: int,
        accepted: int,
        draft_s: float | None,
        verify_s: float,
        context: int,
        i: int,
    ) -> None:
        """One scoring round of request i; ``draft_s=None``: its first draft also reads the
        prompt."""
        self.measurements.round(
            target.name,
            drafter,
            TRAFFIC,
            drafted=drafted,
            accepted=accepted,
            judged=accepted + (accepted < drafted),
            draft_s=draft_s,
            verify_s=verify_s,
            how=HOW,
            context=context,
            answer=i,
            at=self.at,
        )

    def over(self, target: Target, drafter: str, i: int) -> None:
        """Request i makes no more rounds."""
        self.measurements.over(target.name, drafter, TRAFFIC, i, HOW)

    def answered(
        self,
        i: int,
        target: Target,
        *,
        ttft_s: float | None,
        tpot_s: float,
        streamed: int,
        context: int,
        rounds: tuple[int, int],
    ) -> None:
        """An answer has ended, of whose tokens ``streamed`` came in a plain stream that began after
        ``context`` tokens. ``rounds``: prompt tokens of its scoring requests, and cached ones."""
        tokens = self.world.scenario.tokens
        if ttft_s is not None:
            self.measurements.pace(
                target.name,
                TRAFFIC,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                tokens=streamed,
                context=context,
                at=self.at,
            )
        self.measurements.answer(target.name, TRAFFIC, tokens, self.at)
        if self.world.scenario.cached is not None:
            self._billed(target, self.world.contexts[i], streamed == tokens, rounds)
        if streamed == tokens and not self._calibrated:
            self._calibrate(i)
        if streamed == tokens and self.world.scenario.shadow:
            self._shadow(i, target)

    def _billed(self, target: Target, prompt: int, plain: bool, rounds: tuple[int, int]) -> None:
        """What usage showed. A request's later scoring requests are entered as one."""
        counts = [(prompt, 0), (rounds[0] - prompt, rounds[1])]
        self.measurements.attempted(
            [
                Attempt(target.name, "plain" if plain else "score", "ok", 0.0, Usage(n, 0, cached))
                for n, cached in counts[: 1 if plain or rounds[0] <= prompt else 2]
            ],
            self.at,
        )

    def _calibrate(self, i: int) -> None:
        """As a client does beside its first request: the drafters' speed, and scoring requests."""
        self._calibrated = True
        for target in self.world.scenario.targets:
            for n in range(CALIBRATIONS):
                seconds = self.world.round_s(i, n + 1, 4, target)
                self.measurements.verify_time(target.name, HOW, seconds, k=4, at=self.at)
            self.measurements.first_pace(
                target.name,
                ttft_s=self.world.ttft(i, CALIBRATIONS + 1, target),
                tpot_s=self.world.tpot(i, target),
            )
        for drafter in DRAFTERS:
            self.measurements.draft_time(drafter.name, drafter.token_s)

    def _shadow(self, i: int, target: Target) -> None:
        """What each drafter would have had accepted, from the starts that rounds would have had."""
        for drafter in DRAFTERS:
            runs = self.world.runs(i, drafter, target)
            rounds, at = [], 0
            while at < len(runs):
                accepted = min(runs[at], MAX_K)
                censored = at + accepted >= len(runs) or accepted == MAX_K
                rounds.append((accepted, accepted + (not censored)))
                at += accepted + 1
            self.measurements.shadowed(
                target.name, drafter.name, TRAFFIC, rounds, how=HOW, at=self.at
            )


def target_named(world: World, name: str | None) -> Target:
    """The target that a candidate or plan is for; ``None`` is the first."""
    return next((each for each in world.scenario.targets if each.name == name), FIRST)


__all__ = ["HOW", "PLAIN", "TRAFFIC", "Feed", "target_named"]

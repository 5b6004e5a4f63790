"""What a policy sees: every figure measured for one request's target, drafter and class, frozen.

Knows how figures combine (an input price with its share of cached tokens, a round with its draws).
Knows nothing of how they were gathered, nor what a policy makes of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specroute.measure.acceptance import NO_EVIDENCE, Acceptance
from specroute.measure.crowd import NOBODY, Crowd
from specroute.measure.estimate import Estimate, Law
from specroute.measure.together import NOBODY_ELSE, Room


@dataclass(frozen=True, slots=True)
class Pace:
    """A target's plain pace at an ordinary request of the class: seconds; ``None``: unknown."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    answer_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a policy may look at for one (target, drafter, judge, traffic class).

    ``None`` is unknown, never 0. Seconds, tokens, US dollars per token.
    """

    pace: Pace = Pace()
    acceptance: Acceptance = NO_EVIDENCE
    """All evidence: this class's rounds, what plain answers show of its drafts (``shadow``, for
    less), and a few tokens' worth of the coarser classes."""
    verify_s: float | None = None
    """One scoring request with what it drew, sent to answered, at an ordinary context and K."""
    draft_s: float | None = None
    """Per drafted token."""
    rounds: float = 0.0
    """Scoring requests behind ``verify_s``."""
    since_tried: int = 0
    """Requests of this class planned since speculation was last tried."""
    context: int = 0
    """Tokens that a scoring request carries beside the draft, when the request begins."""
    prompt_per_token: bool = False
    """A scoring request carries all that, and brings an output token, once per drafted token."""
    usd_in: float | None = None
    usd_out: float | None = None
    """Dollars per token; ``None`` is unknown."""
    usd_cached: float | None = None
    """Of a prompt token read from the server's cache; ``None``: unknown, counts as ``usd_in``."""
    usd_draft_in: float | None = 0.0
    """Dollars per prompt token of the draft's own provider; 0: it bills nothing,"""
    usd_draft_out: float | None = 0.0
    """and per drafted token,"""
    usd_draft_again: float | None = 0.0
    """and per token of a context that it was sent before: at its price for cached input, where it
    has one."""
    cached: Estimate | None = None
    """The share of a plain request's prompt that the server reads from its cache."""
    round_cached: Estimate | None = None
    """The same of a scoring request."""
    rounds_seen: Acceptance = NO_EVIDENCE
    """This class's own real rounds alone."""
    shadow: Acceptance = NO_EVIDENCE
    """What this class's plain answers show of this drafter's drafts: not chosen by K, so it
    reaches positions that rounds with a small K never judge."""
    round_law: Law | None = None
    """A scoring request's seconds, draws left out, by (context in tokens, K)."""
    ttft_law: Law | None = None
    """Plain time to the first token by (prompt tokens, other requests in flight)."""
    tpot_law: Law | None = None
    """Plain seconds per further token by (context in tokens, other requests in flight)."""
    first_draft_law: Law | None = None
    """Seconds that a request's first draft takes beyond its tokens' own, by (context, 0)."""
    drafting: Estimate | None = None
    """``draft_s`` with its interval."""
    answer: Estimate | None = None
    """Tokens of an answer, with the interval of the mean."""
    draws: Estimate | None = None
    """Tokens that the rules ask the target for, per judged token (rules 2, 4 and 6)."""
    draw: Estimate | None = None
    """Seconds of one such request."""
    failures: Estimate | None = None
    """The share of the target's requests that fail, refusals for too many requests left out."""
    limited: Estimate | None = None
    """The share that is refused with 429."""
    predicted: Estimate | None = None
    """The share of predicted tokens that the server takes."""
    predicted_sent: float | None = None
    """Tokens of a prediction."""
    predicted_tpot: Estimate | None = None
    """Seconds a token of an answer with a prediction."""
    idle: int = 0
    """Requests planned with speculation since a stream of the target's own was timed."""
    quickened: float = 1.0
    """What a scoring request takes against what it took then; 1 at most."""
    in_flight: float = 0
    """Other requests of this client now under way at the target."""
    crowd: Crowd = NOBODY
    """Those requests, and what each costs the others."""
    room: Room = NOBODY_ELSE
    """Requests that follow this plan at the target now, and how many won by it together."""
    prompt_tokens: int = 0
    """Of this request, about."""
    by_temperature: tuple[tuple[float, Acceptance], ...] = ()
    """All classes' acceptance at each temperature that the draft was sampled with."""
    of_its_own: float = math.inf
    """Judged tokens of this class itself behind ``acceptance``; 0: all of it is borrowed,"""
    even: bool = False
    """from classes of which those that were new of late have turned out to be like the others."""

    def round_time(self, context: float, k: float) -> Estimate | None:
        """Seconds of one scoring request of K tokens after ``context`` tokens, draws left out."""
        return None if self.round_law is None else self.round_law.at(context, k)

    def ttft(
        self, prompt_tokens: float | None = None, in_flight: float | None = None
    ) -> Estimate | None:
        """Plain seconds to the first token; of this request, now, where nothing else is said."""
        if self.ttft_law is None:
            return None
        x = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return self.ttft_law.at(x, self.in_flight if in_flight is None else in_flight)

    def tpot(self, context: float | None = None, in_flight: float | None = None) -> Estimate | None:
        """Plain seconds per token after the first; as :meth:`ttft`."""
        if self.tpot_law is None:
            return None
        x = self.prompt_tokens if context is None else context
        return self.tpot_law.at(x, self.in_flight if in_flight is None else in_flight)

    def first_draft(self, context: float) -> Estimate | None:
        """Seconds that a request's first draft takes to read ``context`` tokens."""
        return None if self.first_draft_law is None else self.first_draft_law.at(context, 0.0)

    @property
    def usd_prompt(self) -> float | None:
        """Dollars per prompt token of a plain request, cached ones at their own price."""
        return self._usd_in(self.cached)

    @property
    def usd_round_prompt(self) -> float | None:
        """Dollars per prompt token of a scoring request, cached ones at their own price."""
        return self._usd_in(self.round_cached)

    def _usd_in(self, share: Estimate | None) -> float | None:
        if self.usd_in is None or self.usd_cached is None or share is None:
            return self.usd_in
        return share.mean * self.usd_cached + (1 - share.mean) * self.usd_in

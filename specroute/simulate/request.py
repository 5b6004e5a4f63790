"""One simulated request: its rounds, one at a time or in flight, and the plain stream after them.

Drafts, scores, commits, measures and hands over as ``engine`` and ``method`` do, on the world's
delays and hits. Knows no policy by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from specroute.measure import Acceptance, AcceptanceCounts, Mean, Snapshot
from specroute.policy.base import Plan, Policy, RoundView
from specroute.simulate.feed import Feed
from specroute.simulate.scenario import Drafter
from specroute.simulate.world import World
from specroute.types import Method

_NOTHING = Acceptance()


@runtime_checkable
class Confident(Protocol):
    """A policy that stops a draft after a token that its drafter is unsure of."""

    threshold: float


class Request:
    """Request ``i`` of a world. After :meth:`run`: what it took."""

    def __init__(
        self,
        world: World,
        i: int,
        plan: Plan,
        policy: Policy,
        feed: Feed | None,
        snapshot: Snapshot,
    ) -> None:
        self.world, self.i, self.plan, self.policy, self.feed = world, i, plan, policy, feed
        self.snapshot = snapshot
        self.target = plan.target or world.targets[0]
        self.tokens, self.context = world.tokens(i), world.context(i)
        self.seconds = self.dollars = 0.0
        self.at = 0
        """Tokens committed."""
        self.sent = 0
        """Scoring requests."""
        self.prompts = self.cached = 0
        """Prompt tokens of them and of the stream that takes over, and those of these from the
        cache."""
        self.usd_in, self.usd_out, self.usd_cached = world.prices(self.target) or (0.0, 0.0, None)
        self._own = AcceptanceCounts()
        self._verify, self._draft = Mean(0.8, most=2), Mean(0.8, most=2)
        self._last: tuple[int, int] | None = None

    def run(self) -> Request:
        """To the answer's end."""
        world, i, drafter = self.world, self.i, self._drafter()
        if drafter is not None:
            self._score(drafter)
        left = self.tokens - self.at
        began, ttft, tpot = self.at, None, world.tpot(i, self.target)
        if left > 0:
            ttft = world.ttft(i, self.sent, self.target)
            self.seconds += ttft + (left - 1) * tpot
            self._bill(self.at, 0, left, scoring=bool(self.sent))
        if self.feed is not None:
            self.feed.at += self.seconds
            if self.sent and drafter is not None:
                self.feed.over(self.target, drafter.name, i)
            self.feed.answered(
                i,
                self.target,
                ttft_s=ttft,
                tpot_s=tpot,
                streamed=left,
                context=self.context + began,
                rounds=(self.prompts, self.cached),
                drafter=drafter.name if drafter is not None and self.sent else None,
            )
        return self

    def _drafter(self) -> Drafter | None:
        if self.plan.method is not Method.SCORE:
            return None
        found = next(each for each in self.world.drafters if each.name == self.plan.drafter)
        at = self.plan.draft_temperature
        return found if at is None else replace(found, temperature=at)

    # --- rounds -----------------------------------------------------------------------------

    def _score(self, drafter: Drafter) -> None:
        """Rounds until the answer ends or the policy says 0."""
        runs = self.world.runs(self.i, drafter, self.target)
        sure: Sequence[float] = ()
        threshold = 0.0
        if isinstance(self.policy, Confident):
            sure = self.world.confidences(self.i, drafter, self.target)
            threshold = self.policy.threshold
        self.seconds += self.context * drafter.read_s
        while self.at < self.tokens:
            k = self.policy.next_k(self._view(), self.snapshot)
            if k == 0:
                if not self.sent:
                    self.seconds -= self.context * drafter.read_s
                return
            if sure:
                k = _until_unsure(sure, self.at, k, threshold)
            if self.plan.depth > 1:
                self._fly(drafter, k, runs)
            else:
                self._round(drafter, k, runs)

    def _view(self) -> RoundView:
        return RoundView(
            self.sent,
            self.at,
            None,
            self._own.frozen() if self.feed is not None else _NOTHING,
            self._verify.value,
            self._draft.value,
            self.plan,
            self.context + self.at,
            self._last,
            self.seconds,
        )

    def _round(self, drafter: Drafter, k: int, runs: Sequence[int]) -> None:
        """One round: the draft, then the scoring request."""
        k = min(k, self.tokens - self.at - 1)
        accepted = min(runs[self.at], k)
        drafting = k * drafter.token_s
        verifying = self.world.round_s(self.i, self.sent, k, self.target)
        self.seconds += drafting + verifying
        self._bill(self.at, k, 1, scoring=True)
        self._judged(drafter, self.at, k, accepted, drafting, verifying)
        self.at += accepted + 1

    def _fly(self, drafter: Drafter, k: int, runs: Sequence[int]) -> None:
        """Rounds in flight up to a rejection or the answer's end. Each is drafted once the one
        before it is drafted and fewer than ``depth`` are under way; answers are judged in order. A
        round's own token settles the next one's guess (T = 0), so a rejection at a round's very
        start is found by the round before it. What had left by then is billed."""
        depth, begin, at = self.plan.depth, self.at, self.at
        drafted_at = 0.0
        judged_at: list[float] = []
        left: list[tuple[float, int, int]] = []
        """(when it left, where it begins, its K)"""
        ends: float | None = None
        while True:
            n = len(left)
            free = judged_at[n - depth] if n >= depth else 0.0
            size = min(k, self.tokens - at - 1)
            drafted_at = max(drafted_at, free) + size * drafter.token_s
            if ends is not None and drafted_at >= ends:
                break
            left.append((drafted_at, at, size))
            took = self.world.round_s(self.i, self.sent, size, self.target)
            if ends is None:
                lands = drafted_at + took
                judged_at.append(max(judged_at[-1] if judged_at else 0.0, lands))
                accepted = min(runs[at], size)
                self._judged(
                    drafter,
                    at,
                    size,
                    accepted,
                    size * drafter.token_s,
                    took,
                    start=at - begin,
                    refuted=runs[at] == size and at + size + 1 < self.tokens,
                )
                if runs[at] <= size or at + size + 1 >= self.tokens:
                    ends = judged_at[-1]
                    self.at = at + accepted + 1
            else:
                judged_at.append(ends)
                self.sent += 1
            at += size
            if at + 1 >= self.tokens or len(left) > n + 1 + depth:
                break
        for _, start, size in left:
            self._bill(start, size, 1, scoring=True, first=start == begin and not begin)
        self.seconds += ends if ends is not None else judged_at[-1]
        if ends is None:
            self.at = self.tokens

    def _judged(
        self,
        drafter: Drafter,
        at: int,
        k: int,
        accepted: int,
        drafting: float,
        verifying: float,
        *,
        start: int = 0,
        refuted: bool = False,
    ) -> None:
        """``refuted``: all were accepted, and the round's own token is another than the next
        round had guessed."""
        if self.feed is not None:
            refused = accepted < k or refuted
            self._own.add(accepted, accepted + refused, start)
            self._verify.add(verifying)
            if self.sent and k:
                self._draft.add(drafting / k, k)
            self.feed.round(
                self.target,
                drafter.name,
                k,
                accepted,
                drafting if self.sent else None,
                verifying,
                self.context + at,
                self.i,
                temperature=drafter.temperature or self.world.temperature,
                refused=refused,
                start=start,
            )
        self._last = (k, accepted)
        self.sent += 1

    # --- the bill ---------------------------------------------------------------------------

    def _bill(
        self, at: int, drafted: int, output: int, *, scoring: bool, first: bool | None = None
    ) -> None:
        """A request after ``at`` tokens of the answer; the request's first finds nothing cached."""
        prompt = self.context + at
        if first is None:
            first = not self.sent
        cached = 0 if first or self.usd_cached is None else max(prompt - 1, 0)
        if scoring:
            self.prompts += prompt
            self.cached += cached
        self.dollars += (prompt - cached + drafted) * self.usd_in + output * self.usd_out
        if cached and self.usd_cached is not None:
            self.dollars += cached * self.usd_cached


def _until_unsure(sure: Sequence[float], at: int, k: int, threshold: float) -> int:
    """Tokens up to and with the first one below the threshold."""
    for j in range(k):
        if at + j >= len(sure) or sure[at + j] < threshold:
            return j + 1
    return k

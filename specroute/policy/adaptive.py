"""``adaptive``: speculate only while the measured figures say that it pays.

Compares the plain pace with a scoring round's predicted seconds per token (``speedup``), from the
measured survival S(k), round time, draft time and TPOT; K = 0 is a normal answer. Chooses between
``score`` and ``plain`` only: ``prefix`` costs more requests than one, so it is used where a
``fixed`` policy asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specroute import speedup
from specroute.acceptance import Lossy
from specroute.candidates import Candidates
from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import Plan, RoundView
from specroute.types import Method

_UNTRIED_DRAFT_S = 0.004
"""Seconds per drafted token assumed before a drafter was ever timed."""
_HOPE = 0.85
"""Per-token acceptance assumed where none was measured: optimistic, so that it gets tried once."""
_RETRY = 50
"""Requests of a class after which a losing drafter is tried again, at most."""
_MIN_ROUNDS = 2
"""Rounds before a request's own evidence may end its speculation."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The preset ``balanced``."""

    usd_per_second: float = 0.01
    max_num_speculative_tokens: int = 16
    min_speedup: float = 1.05
    max_rounds: int = 0
    lossy: Lossy | None = None
    """The lossy acceptance rule, where one was asked for."""

    eager = False
    """The first requests go plain while the target is calibrated beside them."""

    def plan(self, options: Candidates, snapshot: Callable[[str], Snapshot]) -> Plan:
        """The drafter with the best predicted speed-up, if that is at least ``min_speedup``."""
        able = options.of(Method.SCORE)
        if not able:
            return Plan(Method.PLAIN, None, 0, options.why_not(Method.SCORE))
        best: tuple[float, str, int] | None = None
        for candidate in able:
            name = candidate.drafter or ""
            figures = snapshot(name)
            plain = self._plain(figures)
            if plain is None or figures.verify_s is None:
                return Plan(Method.PLAIN, None, 0, "the target's plain pace is measured first")
            k, pace = self._best(figures, None, self.max_num_speculative_tokens)
            gain = plain / pace if k else 0.0
            # The less evidence there is against it, the sooner it is tried again.
            due = min(_RETRY, max(2, round(2 * sum(figures.acceptance.judged[:1]))))
            if figures.since_tried >= due and gain < self.min_speedup:
                return Plan(
                    Method.SCORE,
                    name,
                    max(k, 2),
                    f"not tried for {figures.since_tried} requests: measured anew",
                )
            if best is None or gain > best[0]:
                best = (gain, name, k)
        gain, name, k = best or (0.0, "", 0)
        if k == 0 or gain < self.min_speedup:
            return Plan(
                Method.PLAIN,
                None,
                0,
                f"score is predicted to run at {gain:.2f} times the plain pace with {name!r}",
            )
        return Plan(
            Method.SCORE,
            name,
            k,
            f"score is predicted to run at {gain:.2f} times the plain pace with {name!r}, K = {k}",
        )

    def next_k(self, view: RoundView, snapshot: Snapshot) -> int:
        """K by the marginal rule on the pooled survival updated by this request's own rounds; 0
        when the rest of the answer would come sooner from a plain stream, its start included."""
        if self.max_rounds and view.rounds >= self.max_rounds:
            return 0
        limit = self.max_num_speculative_tokens
        if view.remaining is not None:
            limit = min(limit, max(view.remaining - 1, 1))
        k, pace = self._best(snapshot, view, limit)
        plain = self._plain(snapshot)
        if plain is None or view.rounds < _MIN_ROUNDS:
            return max(k, 1)
        expected = (snapshot.pace.answer_tokens or 0.0) - view.committed
        left = max(expected, 16.0)
        if view.remaining is not None:
            left = min(left, view.remaining)
        again = self._dollars(snapshot.usd_in) * snapshot.context
        restart = (snapshot.pace.ttft_s or 0.0) + again
        if k == 0 or (pace - plain) * left > restart:
            return 0
        return k

    def _plain(self, figures: Snapshot) -> float | None:
        """J of one plainly streamed token: seconds + dollars / usd_per_second."""
        if figures.pace.tpot_s is None:
            return None
        return figures.pace.tpot_s + self._dollars(figures.usd_out)

    def _dollars(self, usd: float | None) -> float:
        """Dollars as seconds. An unknown price can't be weighed: then seconds alone decide."""
        return 0.0 if usd is None else usd / self.usd_per_second

    def _best(self, figures: Snapshot, view: RoundView | None, limit: int) -> tuple[int, float]:
        """(K, J per token) of the best round; K = 0 with an infinite J if none is known.

        A round costs its seconds and the whole context as input plus one output token; each
        drafted token adds its drafting time and one input token, or as much as the round itself
        where a server is asked once per drafted token.
        """
        verify_s = figures.verify_s
        draft_s = figures.draft_s if figures.draft_s is not None else _UNTRIED_DRAFT_S
        if view is not None and view.verify_s is not None:
            verify_s = view.verify_s
        if verify_s is None or limit < 1:
            return 0, float("inf")
        own = Acceptance() if view is None else view.own
        survival = own.survival(limit, figures.acceptance, default=_HOPE)
        usd_in, usd_out = self._dollars(figures.usd_in), self._dollars(figures.usd_out)
        asked = usd_in * figures.context + usd_out
        each = asked if figures.prompt_per_token else usd_in
        best = speedup.best_k(survival, verify_s + asked, draft_s + each)
        return best.k, best.j

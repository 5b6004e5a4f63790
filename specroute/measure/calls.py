"""Requests under way and calls that left: who is at a target now, what failed, what was cached.

Knows no pace and no draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specroute.measure.files import MOST_CLASSES, Files, make_room
from specroute.measure.kinds import Doing
from specroute.measure.level import Share
from specroute.measure.together import NOBODY_ELSE, Due, Member, Room, Together
from specroute.types import Attempt

_BLOCK = 16
"""Prompt tokens that a server caches, or doesn't, as one (vLLM's default; others have more)."""
_AGAIN = 16.0
"""Such blocks that a short context found again counts as: a server that caches what it has just
read does so with longer ones all the more."""


class Calls(Files):
    """What is known of a client's calls, whatever they were for."""

    def begin(self, target: str, now: float | None = None, prompt_tokens: int = 0) -> int:
        """A request for ``target`` begins; how many others are under way there. ``now``: seconds
        on a clock that only runs forward; without it nothing is learned of the crowd."""
        if target not in self.targets:
            make_room(self.targets, MOST_CLASSES)
        seen = self.targets[target]
        seen.in_flight += 1
        if now is not None:
            seen.crowd.begin(now, self.fresh(target, "plain", prompt_tokens))
        return seen.in_flight - 1

    def end(self, target: str, now: float | None = None) -> None:
        """A request that was begun has ended."""
        seen = self.targets[target]
        seen.in_flight = max(0, seen.in_flight - 1)
        if now is not None:
            seen.crowd.end(now)

    def fresh(self, target: str, purpose: str, tokens: float) -> float:
        """Of so many prompt tokens those that the server has to read: it has the others cached."""
        seen = self.targets.get(target)
        share = None if seen is None else seen.cached.get(purpose)
        found = None if share is None else share.estimate()
        return tokens if found is None else tokens * (1.0 - found.mean)

    def others(self, target: str) -> int:
        """Requests under way at ``target`` beside the one that asks."""
        return max(self.targets[target].in_flight - 1, 0)

    def room(self, target: str, doing: Doing, now: float) -> Room:
        """How many requests at ``target`` follow a plan now, and how many were seen to win by it
        together."""
        found = self.targets[target].together.get(doing)
        return NOBODY_ELSE if found is None else found.room(now)

    def joins(
        self,
        target: str,
        doing: Doing,
        clock: Callable[[], float],
        due: Due,
        answer: float,
        waited: Callable[[], float] = float,
    ) -> Member:
        """A request at ``target`` follows a plan from now on; as :meth:`Together.joins`."""
        together = self.targets[target].together
        found = together.get(doing)
        if found is None:
            found = together[doing] = Together()
        return found.joins(clock, due, answer, waited)

    def tried_now(self, target: str, drafter: str) -> bool:
        """Whether some request at ``target`` uses ``drafter``."""
        together = self.targets[target].together
        return any(each.busy for doing, each in together.items() if doing[2] == drafter)

    def attempted(self, attempts: Iterable[Attempt], at: float = 0.0) -> None:
        """One request's calls that left for providers: what failed, what was refused, what was
        cached. Its first scoring request finds no more in a cache than a plain call would, so it
        counts as one; a stream that takes over finds what the scoring requests have left there, as
        another of them would. A draft is new to every cache and paid for as such: the share is of
        what goes before it."""
        first = True
        for attempt in attempts:
            if attempt.outcome in ("cancelled", "abandoned"):
                continue  # The caller's doing.
            usage, purpose, part = attempt.usage, attempt.purpose, None
            if usage.prompt_tokens and usage.cached_tokens is not None:
                if purpose == "score" and first:
                    purpose, first = "plain", False
                elif purpose == "handover":
                    purpose = "score"
                known = max(usage.prompt_tokens - attempt.drafted, 1)
                part = min(1.0, usage.cached_tokens / known)
            blocks = (usage.prompt_tokens or 0) / _BLOCK
            self.called(attempt.target, attempt.outcome, purpose, part, blocks, at)

    def read_again(self, target: str, scored: Attempt, at: float = 0.0) -> None:
        """A scoring request whose context the server had just read: calibration's, as a rule the
        first there is. What it shows as cached tells that a round's context will be, too, so that
        rounds have a price before any was made; nothing tells no more than that it was short."""
        usage, known = scored.usage, (scored.usage.prompt_tokens or 0) - scored.drafted
        if usage.cached_tokens and known > 0:
            # All that whole blocks can hold of so short a context is all of a long one.
            whole = known - usage.cached_tokens < _BLOCK
            part = 1.0 if whole else usage.cached_tokens / known
            self.called(target, "ok", "score", part, _AGAIN, at)

    def called(
        self,
        target: str,
        outcome: str,
        purpose: str = "plain",
        cached: float | None = None,
        blocks: float = 0.0,
        at: float = 0.0,
    ) -> None:
        """One call that left for ``target``; of its prompt's ``blocks`` the share ``cached`` was
        read from the server's cache (``None``: it didn't say)."""
        seen = self.targets[target]
        seen.seen_at = at
        refused = outcome == "status 429"
        seen.limited.add(refused)
        if not refused:
            seen.failed.add(outcome != "ok")
        if cached is not None:
            seen.cached.setdefault(purpose, Share(0.95)).add(cached, blocks)
        if self.heard is not None:
            self.heard(("called", target, outcome, purpose, cached, blocks))

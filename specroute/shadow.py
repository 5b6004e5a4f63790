"""When finished answers are used to measure drafts: while no request drafts, in a share of time.

One answer at a time, the newest first; a request that drafts ends it at once. The drafts of a model
share the time equally: one that is quick sees more answers. Knows queues and
clocks; what an answer shows is ``shadow_rounds``'s matter, what becomes of it the measurements'.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specroute import config as configs
from specroute.book import Book
from specroute.context import Prompt
from specroute.draft.base import Drafter
from specroute.http.supervisor import Supervisor
from specroute.measure import Measurements
from specroute.overheard import Heard
from specroute.shadow_rounds import Shadowed, matched, rejected
from specroute.types import Attempt
from specroute.vocabulary import Vocabulary

log = logging.getLogger("specroute")

WAITING = 4
"""Answers that may wait; older ones are let go of."""
RULES = "rules"


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished answer of the target's own."""

    target: str
    """``provider:model``."""
    traffic: str
    hows: tuple[str, ...]
    """What matching drafts are measured as."""
    drafts: tuple[str, ...]
    prompt: Prompt
    vocabulary: Vocabulary | None
    """The target's."""
    heard: Callable[[], Heard | None]
    """Reads the answer; may take a few milliseconds."""
    by_logprobs: bool = False
    """Sampled at T = 1 without truncation: log-probabilities, where shown, are the target's p."""
    temperature: float = 1.0
    """What a draft would be drawn at then."""
    traced: Callable[[Mapping[str, Any]], None] | None = None
    """Takes a line for the recorded request."""
    billed: Callable[[Sequence[Attempt]], None] | None = None
    """Takes the calls of drafts that cost money."""


class Shadow:
    """Shared by all requests of a client.

    ``drafter`` gives a drafter that is ready, ``None`` one that isn't. ``remote``: the
    ``provider:model`` of drafts that are billed, by name; they are scored only where the config has
    ``paid``.
    """

    def __init__(
        self,
        config: configs.Shadow,
        supervisor: Supervisor,
        measurements: Measurements,
        drafter: Callable[[str], Drafter | None],
        remote: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self._supervisor = supervisor
        self._measurements = measurements
        self._drafter = drafter
        self._remote = remote
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._waiting: deque[Finished] = deque(maxlen=WAITING)
        self._task: asyncio.Task[None] | None = None
        self._scoring: asyncio.Task[None] | None = None
        self._drafting = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._ready_at: dict[str, float] = {}
        """By draft: when it may be used again."""
        self.scored = 0
        """Answers that were used."""

    @property
    def on(self) -> bool:
        """Whether the config leaves it any time."""
        return self.config.share > 0

    def begin(self) -> None:
        """A request drafts from now on: what is under way is ended."""
        self._drafting += 1
        self._quiet.clear()
        if self._scoring is not None:
            self._scoring.cancel()

    def end(self) -> None:
        """It no longer does."""
        self._drafting -= 1
        if not self._drafting:
            self._quiet.set()

    def offer(self, answer: Finished) -> None:
        """Use this answer when there is time."""
        if not self.on or not answer.drafts or not (answer.hows or answer.by_logprobs):
            return
        self._waiting.append(answer)
        if self._task is None or self._task.done():
            self._task = self._supervisor.spawn(self._run(), name="shadow acceptance", apart=True)

    async def idle(self) -> None:
        """Until no answer waits any more."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._waiting:
            usable = self._usable(self._waiting[-1])
            if not usable:
                self._waiting.pop()
                continue
            ready = min(map(self._ready, usable))
            await self._sleep(max(0.0, ready - self._clock()))
            await self._quiet.wait()
            answer = self._waiting.pop()
            self._scoring = self._supervisor.spawn(self._score(answer), name="shadow rounds")
            if self._scoring is None:
                return
            await asyncio.wait({self._scoring})
            self._scoring = None

    def _usable(self, answer: Finished) -> dict[str, Drafter]:
        """The drafts that may be scored on an answer, by name, whenever that is."""
        names = [n for n in answer.drafts if self.config.paid or n not in self._remote]
        return {n: drafter for n in names if (drafter := self._drafter(n)) is not None}

    def _ready(self, name: str) -> float:
        return self._ready_at.get(name, -float("inf"))

    def _spent(self, name: str, began: float, drafts: int) -> None:
        """A draft has taken its time since ``began``: it rests until that is its share."""
        share, now = self.config.share / drafts, self._clock()
        self._ready_at[name] = now + (now - began) * (1 - share) / share

    async def _score(self, answer: Finished) -> None:
        try:
            heard = await asyncio.to_thread(answer.heard)
        except (ValueError, LookupError, AttributeError, TypeError):
            return  # An answer of a shape of its own.
        if heard is None or not heard.text:
            return
        answer = replace(answer, prompt=await asyncio.to_thread(_with_ids, answer))
        usable = self._usable(answer)
        names = [name for name in usable if self._ready(name) <= self._clock()]
        # Not always the same first: a request that drafts may end this at any time.
        self._rng.shuffle(names)
        for name in names:
            drafter, began = usable[name], self._clock()
            try:
                await self._score_draft(answer, heard, drafter)
            except Exception as error:  # noqa: BLE001 - whatever a drafter raises
                log.debug("shadow acceptance of %s: %s", name, error)
            finally:
                self._spent(name, began, len(usable))
        self.scored += 1

    async def _score_draft(self, answer: Finished, heard: Heard, drafter: Drafter) -> None:
        vocabulary = answer.vocabulary
        prompt = answer.prompt
        if vocabulary is None and prompt.ids is not None:
            return  # Ids that nobody here can read.
        sampled = answer.by_logprobs and heard.logprobs is not None and vocabulary is not None
        if not (sampled or answer.hows):
            return
        # Nobody asks this prompt again: what requests have in the draft's cache stays there.
        session = await getattr(drafter, "open_aside", drafter.open)(prompt, vocabulary)
        found: list[Shadowed] = []
        try:
            if sampled:
                assert vocabulary is not None
                assert heard.logprobs is not None
                shown, rng = heard.logprobs, self._rng
                at = answer.temperature
                found.append(await rejected(session, shown, vocabulary, rng, temperature=at))
                self._learn(answer, drafter.name, found[-1], (RULES,))
            if answer.hows:
                found.append(await matched(session, heard.text, vocabulary, rng=self._rng))
                self._learn(answer, drafter.name, found[-1], answer.hows)
        finally:
            await session.aclose()
            self._bill(answer, drafter.name, found)

    def _bill(self, answer: Finished, drafter: str, found: Sequence[Shadowed]) -> None:
        book = Book()
        for usage in (usage for seen in found for usage in seen.usages):
            with book.attempt(self._remote.get(drafter, drafter), "shadow") as entry:
                entry.usage = usage
        if answer.billed is not None and book.attempts:
            answer.billed(book.attempts)

    def _learn(self, answer: Finished, drafter: str, seen: Shadowed, hows: Sequence[str]) -> None:
        if not seen.rounds:
            return
        at = time.time()
        if seen.draft_s:
            self._measurements.draft_time(drafter, seen.draft_s, at)
        for how in hows:
            self._measurements.shadowed(
                answer.target, drafter, answer.traffic, seen.rounds, how=how, at=at
            )
            if answer.traced is not None:
                answer.traced(
                    {
                        "target": answer.target,
                        "traffic": answer.traffic,
                        "how": how,
                        "drafter": drafter,
                        "hits": "".join(seen.hits),
                        "rounds": [list(each) for each in seen.rounds],
                        "draft_s": seen.draft_s,
                    }
                )


def _with_ids(answer: Finished) -> Prompt:
    """The prompt in the target's ids, as real rounds have it, where they can be known here."""
    prompt, vocabulary = answer.prompt, answer.vocabulary
    if vocabulary is None or prompt.ids is not None:
        return prompt
    try:
        if prompt.messages is not None:
            return replace(prompt, ids=tuple(vocabulary.render(prompt.messages)))
        return replace(prompt, ids=tuple(vocabulary.encode(prompt.text or "")))
    except ValueError:
        return prompt  # It has no template, or none for this chat.

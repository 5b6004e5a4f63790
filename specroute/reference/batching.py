"""The one loop that steps together what is there together, at the pace of the imitated target.

Knows sequences, steps, the prefix cache and deadlines; deliberately not HTTP, JSON or where the
numbers come from. A step advances every running sequence by one token; what arrived during a step
joins the next one, which then also takes the time of its prompt. Steps end at absolute deadlines,
so errors of the clock don't add up, and real computing is inside a step's time, not on top of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

from specroute.reference.backend import Backend, Entry, Scores, State, Work
from specroute.reference.pace import Pace
from specroute.reference.prediction import BURST, Prediction
from specroute.reference.prefix_cache import PrefixCache
from specroute.reference.sampling import NEVER, Settings
from specroute.reference.text import TextStream


@dataclass(slots=True)
class Item:
    """One token on its way out, or the end of a sequence that generates none."""

    choice: Choice
    token: int | None
    entry: Entry | None
    """The token's raw logprob and alternatives, if they were asked for."""
    own: str
    """The token's own text, "" while its last character is incomplete."""
    shown: str
    """What this token lets the client see."""
    finish: str | None
    """``stop``, ``length`` or ``error`` on a sequence's last item."""
    due: float
    """When the imitated target had it ready (loop time)."""


class Outbox:
    """What the sequences of one request have produced and the client hasn't been sent."""

    __slots__ = ("_event", "closed", "items")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.closed = False
        """Whether the client has gone."""
        self._event = asyncio.Event()

    def put(self, item: Item) -> None:
        """Add one item and wake the reader."""
        self.items.append(item)
        self._event.set()

    def close(self) -> None:
        """The client has gone: wake the reader."""
        self.closed = True
        self._event.set()

    async def wait(self) -> None:
        """Until there is an item or the client has gone."""
        while not (self.items or self.closed):
            self._event.clear()
            await self._event.wait()

    async def until(self, deadline: float) -> None:
        """Until loop time ``deadline``, or the client has gone."""
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            return
        passed = False

        def ring() -> None:
            nonlocal passed
            passed = True
            self._event.set()

        timer = loop.call_at(deadline, ring)
        try:
            while not (self.closed or passed):
                self._event.clear()
                await self._event.wait()
        finally:
            timer.cancel()


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence: what was asked for, and how far it has come."""

    index: int
    outbox: Outbox
    state: State
    prompt_tokens: int
    max_tokens: int
    """Tokens to generate; 0 scores the prompt only."""
    ends: frozenset[int]
    """Ids that end the sequence."""
    settings: Settings
    text: TextStream
    bias: dict[int, float]
    rng: Random | None
    """``None`` for greedy."""
    top: int | None = None
    """Report logprobs, with this many alternatives."""
    score: int | None = None
    """Echo: score the prompt, with this many alternatives."""
    score_from: int = 0
    """First prompt token whose score is wanted: what lies before it may come from the cache."""
    bills: bool = True
    """Whether its prompt counts (the first of ``n``)."""
    prediction: Prediction | None = None
    """A text that the caller expects: where the answer follows it, tokens come faster."""
    scored: list[Entry] = field(default_factory=list)
    """The prompt's entries, from its second token on."""
    admitted: bool = False
    cancelled: bool = False
    cached: int = 0
    generated: int = 0
    overrun: float = 0.0
    """Seconds by which real computing exceeded the pace."""
    finish: str | None = None
    counts: dict[int, int] = field(default_factory=dict)
    picked: tuple[int, Entry | None] | None = None

    def pick(self, scores: Scores, scaled: bool) -> None:
        """Choose the next token; ``scaled`` reports logprobs after temperature (a quirk)."""
        bias, settings = self.bias, self.settings
        if self.counts and (settings.presence_penalty or settings.frequency_penalty):
            bias = dict(bias)
            for token, count in self.counts.items():
                penalty = settings.presence_penalty + count * settings.frequency_penalty
                bias[token] = bias.get(token, 0.0) - penalty
        if self.rng is None:
            token = scores.greedy(bias)
        else:
            token = scores.draw(settings, bias, self.rng.random())
        entry = None
        if self.top is not None:
            if scaled and not settings.greedy:
                scores = scores.scaled(settings.temperature)
            entry = max(scores.logprob(token), NEVER), scores.top(self.top)
        self.picked = token, entry


class Engine:
    """Steps the sequences of all requests. :meth:`run` is the loop, until it is cancelled."""

    def __init__(
        self,
        backend: Backend,
        pace: Pace,
        *,
        max_batch: int = 256,
        quirks: frozenset[str] = frozenset(),
    ) -> None:
        """At most ``max_batch`` sequences step together; later ones wait."""
        self.steps = 0
        """Steps done, for tests and curiosity."""
        self.largest = 0
        """Most sequences stepped at once."""
        self._backend, self._pace, self._max_batch = backend, pace, max_batch
        self._quirks = quirks
        self._cache = PrefixCache(tokens=backend.memory)
        self._waiting: deque[tuple[float, Choice]] = deque()
        self._running: list[Choice] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "reference-model")

    def submit(self, choices: Sequence[Choice], due: float) -> None:
        """Queue ``choices``, which the imitated target saw at loop time ``due``."""
        self._waiting.extend((due, choice) for choice in choices)
        self._wake.set()

    def cancel(self, choices: Sequence[Choice]) -> None:
        """Stop working on ``choices``; a token of the step under way isn't counted."""
        for choice in choices:
            choice.cancelled = True

    async def run(self) -> None:
        """Step while there is work, wait while there isn't."""
        loop = asyncio.get_running_loop()
        end = loop.time()
        try:
            while True:
                if not (self._running or self._waiting):
                    self._wake.clear()
                    await self._wake.wait()
                    await asyncio.sleep(0)  # let what arrived in the same tick join
                end = await self._step(loop, end)
        finally:
            self._thread.shutdown(wait=False)

    async def _step(self, loop: asyncio.AbstractEventLoop, start: float) -> float:
        running = [c for c in self._running if not c.cancelled]
        works = [Work(c.state, c.state.computed) for c in running]
        idle, prompt_tokens = not running, 0
        while self._waiting and len(running) < self._max_batch:
            due, choice = self._waiting.popleft()
            if choice.cancelled:
                continue
            if idle:
                start, idle = max(start, due), False
            work = self._admit(choice)
            prompt_tokens += choice.bills * (choice.prompt_tokens - work.start)
            running.append(choice)
            works.append(work)
        self._running = running
        if not running:
            return start
        for choice in running:
            choice.state.computed = len(choice.state.ids)
        self.steps += 1
        self.largest = max(self.largest, len(running))

        seconds = self._pace.step(prompt_tokens, sum(c.max_tokens > 0 for c in running))
        try:
            if self._backend.inline:
                self._compute(running, works)
            else:
                await loop.run_in_executor(self._thread, self._compute, running, works)
        except Exception as error:  # noqa: BLE001 - whatever a model raises ends its requests only
            self._fail(running, error, loop.time())
            return loop.time()
        now, end = loop.time(), start + seconds
        if not seconds:
            end = now
            await asyncio.sleep(0)
        elif now < end:
            await asyncio.sleep(end - now)
        else:
            for choice in running:
                choice.overrun += now - end
            end = now
        for choice in running:
            if not choice.cancelled:
                self._advance(choice, end)
        try:
            await self._burst(loop, [c for c in running if c.prediction], end)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(running, error, loop.time())
            return loop.time()
        self._running = [c for c in running if c.finish is None]
        return end

    async def _burst(
        self, loop: asyncio.AbstractEventLoop, predicted: list[Choice], due: float
    ) -> None:
        """The further tokens of a step, of answers that follow their prediction."""
        for _ in range(BURST - 1):
            fast = [
                c
                for c in predicted
                if c.prediction and c.prediction.fast and not (c.finish or c.cancelled)
            ]
            if not fast:
                return
            works = [Work(c.state, c.state.computed) for c in fast]
            for choice in fast:
                choice.state.computed = len(choice.state.ids)
            if self._backend.inline:
                self._compute(fast, works)
            else:
                await loop.run_in_executor(self._thread, self._compute, fast, works)
            for choice in fast:
                self._advance(choice, due)

    def _admit(self, choice: Choice) -> Work:
        parent, shared = None, 0
        if choice.score is None:
            parent, shared = self._cache.find(choice.state.ids)
        cached = shared
        if choice.score_from:
            cached = min(self._cache.find(choice.state.ids)[1], choice.score_from)
        choice.admitted, choice.cached = True, cached if choice.bills else 0
        choice.state.computed = len(choice.state.ids)
        self._cache.add(choice.state, parent)
        return Work(choice.state, shared, parent, choice.score)

    def _compute(self, running: Sequence[Choice], works: Sequence[Work]) -> None:
        self._backend.run(works)
        for choice, work in zip(running, works, strict=True):
            if work.score is not None:
                choice.scored = work.scored
                if "echo_shifted" in self._quirks and work.scored:
                    choice.scored = [*work.scored[1:], work.scored[-1]]
            if choice.max_tokens and not choice.cancelled:
                assert work.scores is not None
                choice.pick(work.scores, "scaled_logprobs" in self._quirks)

    def _advance(self, choice: Choice, due: float) -> None:
        if choice.picked is None:
            if choice.max_tokens == 0:
                choice.finish = "length"
                choice.outbox.put(Item(choice, None, None, "", "", "length", due))
            return
        (token, entry), choice.picked = choice.picked, None
        choice.state.ids.append(token)
        choice.generated += 1
        if choice.prediction is not None:
            choice.prediction.follow(token)
        if choice.settings.presence_penalty or choice.settings.frequency_penalty:
            choice.counts[token] = choice.counts.get(token, 0) + 1
        text = choice.text
        piece = self._backend.piece(token)
        if self._backend.is_special(token):
            own, shown = piece.decode("utf-8", "replace"), ""
        else:
            own, shown = text.push(piece)
        if text.stopped or token in choice.ends:
            choice.finish = "stop"
        elif choice.generated >= choice.max_tokens:
            choice.finish = "length"
        if choice.finish:
            shown += text.finish()
        choice.outbox.put(Item(choice, token, entry, own, shown, choice.finish, due))

    def _fail(self, running: Sequence[Choice], error: Exception, due: float) -> None:
        for choice in running:
            choice.finish = "error"
            message = f"{type(error).__name__}: {error}"
            choice.outbox.put(Item(choice, None, None, message, "", "error", due))
        self._running = []
        self._cache = PrefixCache(
            tokens=self._backend.memory
        )  # what was half computed may not be shared

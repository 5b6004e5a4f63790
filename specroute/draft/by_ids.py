"""Drafts by ids: a provider whose model speaks the target's vocabulary goes on from the very ids.

Drafts that are wanted in the same turn of the event loop leave in one ``/completions`` request with
a list of prompts, so that an engine that batches (vLLM, SGLang) steps them together; nothing waits
longer than to the end of that turn. That the model speaks the vocabulary isn't believed: its own
``/tokenize`` has to turn a chat into the target's very prompt. Knows ids and lists; no sessions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from specroute.context import Prompt
from specroute.errors import BadAnswer, ConnectFailed, ProviderError, StatusError
from specroute.limits.purse import current
from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

log = logging.getLogger("specroute")

MOST_PROMPTS = 64
"""Of one request."""
LOOK_S = 10.0
_PASSING = (401, 403, 408, 409, 429)
"""4xx that say nothing of the request itself."""


class NotByIds(Exception):
    """The provider takes no prompts of ids after all: ask by text."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """One prompt's draft; ``ids`` where the provider shows them."""

    text: str
    ids: tuple[int, ...] | None
    usage: Usage


class Calls(Protocol):
    """What is asked of the draft's provider. Both raise :class:`ProviderError`."""

    async def post(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST below the base URL."""
        ...

    async def tokenize(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST to the server's ``/tokenize``."""
        ...

    def spawn(self, work: Any) -> asyncio.Task[Any] | None:
        """Run a coroutine that belongs to no single request; ``None``: the client is closed."""
        ...


class IdDrafts:
    """One model's drafts by ids. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        model: str,
        capabilities: Capabilities,
        calls: Calls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._name, self._model, self._caps, self._calls = name, model, capabilities, calls
        self._same: dict[str, bool] = {}
        """Vocabulary (its fingerprint) → whether the model speaks it, where that was seen."""
        self._looking = asyncio.Lock()
        self._look_at = 0.0
        self._ready: dict[int, list[_Seat]] = {}
        self._lists = bool(capabilities.list_prompts)
        self._off = not (
            capabilities.completions
            and capabilities.id_prompts
            and capabilities.template == "tokenize"
        )
        self.requests = 0
        """Requests that were sent,"""
        self.drafts = 0
        """and the drafts in them."""

    async def speaks(self, prompt: Prompt, vocabulary: Vocabulary) -> bool:
        """Whether ``prompt`` can be drafted from by its ids. Asks the provider once, for the first
        chat; while that can't be had, by text, and again after :data:`LOOK_S`."""
        if self._off or prompt.ids is None:
            return False
        key = vocabulary.fingerprint
        if key not in self._same and prompt.messages is not None:
            async with self._looking:  # Of a first crowd one asks, and the others wait for it.
                if key not in self._same and self._clock() >= self._look_at:
                    await self._look(prompt, key)
        return self._same.get(key, False)

    async def _look(self, prompt: Prompt, key: str) -> None:
        said = {"model": self._model, "messages": list(prompt.messages or ())}
        try:
            tokens = (await self._calls.tokenize(said)).get("tokens")
        except ProviderError as error:
            if not _refused(error):
                self._look_at = self._clock() + LOOK_S
                return
            tokens = None
        self._same[key] = isinstance(tokens, list) and tuple(tokens) == prompt.ids
        if not self._same[key]:
            log.info("draft %r has another vocabulary or template: asked by text", self._name)

    async def ask(self, ids: Sequence[int], k: int) -> Drafted:
        """Up to ``k`` greedy tokens after ``ids``.

        A request with a budget of its own asks alone: what a call may come to is held back in the
        purse of the one that it is made for. Raises :class:`NotByIds` and :class:`ProviderError`.
        """
        if self._off:
            raise NotByIds
        if not self._lists or current.get() is not None:
            return await self._alone(ids, k)
        loop = asyncio.get_running_loop()
        seat = _Seat(tuple(ids), loop.create_future(), loop.create_future())
        ready = self._ready.get(k)
        if ready is None:
            ready = self._ready[k] = []
            loop.call_soon(self._leave, k)
        ready.append(seat)
        try:
            if await seat.company:
                drafted = await seat.answer
                if drafted is not None:
                    return drafted
        finally:
            seat.answer.cancel()
        return await self._alone(ids, k)

    def _leave(self, k: int) -> None:
        waiting = [seat for seat in self._ready.pop(k) if not seat.company.done()]
        for start in range(0, len(waiting), MOST_PROMPTS):
            seats = waiting[start : start + MOST_PROMPTS]
            task = None if len(seats) == 1 else self._calls.spawn(self._together(seats, k))
            for seat in seats:
                seat.company.set_result(task is not None)
            if task is not None:
                _ended_by(task, seats)

    async def _together(self, seats: Sequence[_Seat], k: int) -> None:
        try:
            found = await self._post([seat.ids for seat in seats], k)
        except StatusError as error:
            if not _refused(error):
                _fail(seats, error)
                return
            self._lists = False
            log.info(
                "draft %r: a list of prompts was refused, asked one by one: %s", self._name, error
            )
            found = [None] * len(seats)
        except asyncio.CancelledError:
            _fail(
                seats,
                ConnectFailed(f"draft {self._name!r}: the client was closed", provider=self._name),
            )
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, each caller is told
            _fail(seats, error)
            return
        for seat, drafted in zip(seats, found, strict=True):
            if not seat.answer.done():
                seat.answer.set_result(drafted)

    async def _alone(self, ids: Sequence[int], k: int) -> Drafted:
        try:
            (drafted,) = await self._post([ids], k)
        except StatusError as error:
            if not _refused(error):
                raise
            self._off = True
            log.info("draft %r: a prompt of ids was refused, asked by text: %s", self._name, error)
            raise NotByIds from error
        if drafted is None:
            raise BadAnswer(f"draft {self._name!r}: no answer to its prompt", provider=self._name)
        return drafted

    async def _post(self, prompts: Sequence[Sequence[int]], k: int) -> list[Drafted | None]:
        caps = self._caps
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": [list(ids) for ids in prompts] if len(prompts) > 1 else list(prompts[0]),
            "max_tokens": k,
            "temperature": 0,
            "stream": False,
            **caps.ids_asked,
        }
        if caps.token_ids_param:
            body["logprobs"] = 1
        self.requests += 1
        self.drafts += len(prompts)
        return _read(await self._calls.post(COMPLETIONS, body), prompts)


@dataclass(frozen=True, slots=True, eq=False)
class _Seat:
    """One draft among those that leave in this turn."""

    ids: tuple[int, ...]
    company: asyncio.Future[bool]
    """Whether others go along; known at the end of the turn."""
    answer: asyncio.Future[Drafted | None]
    """``None``: not answered with the others, to be asked alone."""


def _refused(error: ProviderError) -> bool:
    """Whether it is said of the request, and would be said of it again."""
    if not isinstance(error, StatusError):
        return False
    return 400 <= error.status < 500 and error.status not in _PASSING


def _fail(seats: Sequence[_Seat], error: BaseException) -> None:
    for seat in seats:
        if not seat.answer.done():
            seat.answer.set_exception(error)


def _ended_by(task: asyncio.Task[Any], seats: Sequence[_Seat]) -> None:
    """The request ends when the last of those it was made for has gone."""

    def left(_: object) -> None:
        if all(seat.answer.cancelled() for seat in seats):
            task.cancel()

    for seat in seats:
        seat.answer.add_done_callback(left)


def _read(answer: Mapping[str, Any], prompts: Sequence[Sequence[int]]) -> list[Drafted | None]:
    """Each prompt's draft by its ``index``; ``None`` where there is none, or more than one."""
    choices = answer.get("choices")
    found: list[list[Mapping[str, Any]]] = [[] for _ in prompts]
    for choice in choices if isinstance(choices, list) else ():
        index = choice.get("index", 0) if isinstance(choice, Mapping) else None
        if isinstance(index, int) and 0 <= index < len(found):
            found[index].append(choice)
    shown = [_shown(own[0]) if len(own) == 1 else None for own in found]
    bill = Usage.from_wire(answer.get("usage"))
    sent = [len(ids) for ids in prompts]
    made = [1 if own is None else len(own[1] or own[0]) for own in shown]
    shares = zip(
        _parts(bill.prompt_tokens, sent),
        _parts(bill.completion_tokens, made),
        _parts(bill.cached_tokens, sent),
        strict=True,
    )
    return [
        None if own is None else Drafted(*own, Usage(*share))
        for own, share in zip(shown, shares, strict=True)
    ]


def _shown(choice: Mapping[str, Any]) -> tuple[str, tuple[int, ...] | None] | None:
    """(text, ids) of a choice."""
    text, ids = choice.get("text"), choice.get("token_ids")
    if not isinstance(text, str):
        return None
    if not isinstance(ids, list):
        logprobs = choice.get("logprobs")
        tokens = logprobs.get("tokens") if isinstance(logprobs, Mapping) else None
        ids = _named(tokens) if isinstance(tokens, list) else None
    return text, None if ids is None else tuple(ids)


def _named(tokens: Sequence[Any]) -> list[int] | None:
    """N of each ``token_id:N``; ``None`` where one is named by its text."""
    ids = []
    for token in tokens:
        head, _, number = str(token).partition("token_id:")
        if head or not number.isdecimal():
            return None
        ids.append(int(number))
    return ids


def _parts(total: int | None, weights: Sequence[int]) -> list[int | None]:
    """``total`` divided by weights, to the unit: the parts are all of it."""
    if total is None:
        return [None] * len(weights)
    whole = max(sum(weights), 1)
    ends = [total * upto // whole for upto in accumulate(weights)]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

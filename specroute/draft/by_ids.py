"""Drafts by ids: a provider whose model speaks the target's vocabulary goes on from the very ids.

Whoever posts them may let drafts that are wanted in the same turn of the event loop share a
``/completions`` request with a list of prompts, so that an engine that batches (vLLM, SGLang) steps
them together. That the model speaks the vocabulary isn't believed: its own ``/tokenize`` has to
turn a chat into the target's very prompt. Knows ids; no lists and no sessions.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specroute.context import Prompt
from specroute.errors import BadAnswer, ProviderError, StatusError
from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

log = logging.getLogger("specroute")

LOOK_S = 10.0
LATE_SHARE, MOST_LATE_S = 0.01, 300.0
"""Of the time that may go into waiting for looks that nobody had the patience for."""
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

    async def together(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST below the base URL; with others that leave in the same turn, where the provider
        takes lists."""
        ...

    async def tokenize(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST to the server's ``/tokenize``."""
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
        self._longest = 0
        """Prompt and draft together, in tokens: the longest that was answered,"""
        self._too_long = math.inf
        """and the shortest that was refused for its length."""
        self._off = not (
            capabilities.completions
            and capabilities.id_prompts
            and capabilities.template == "tokenize"
        )

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
        began = self._clock()
        try:
            tokens = (await self._calls.tokenize(said)).get("tokens")
        except asyncio.CancelledError:
            # Whoever comes next would wait as long, and never get to a draft by text.
            now = self._clock()
            self._look_at = now + min((now - began) / LATE_SHARE, MOST_LATE_S)
            raise
        except ProviderError as error:
            if not _refused(error):
                self._look_at = self._clock() + LOOK_S
                return
            tokens = None
        self._same[key] = isinstance(tokens, list) and tuple(tokens) == prompt.ids
        if not self._same[key]:
            log.info("draft %r has another vocabulary or template: asked by text", self._name)

    async def ask(self, ids: Sequence[int], k: int) -> Drafted:
        """Up to ``k`` greedy tokens after ``ids``. Raises :class:`NotByIds` and
        :class:`ProviderError`."""
        size = len(ids) + k
        if self._off or size >= self._too_long:
            raise NotByIds
        caps = self._caps
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": k,
            "temperature": 0,
            "stream": False,
            **caps.ids_asked,
        }
        if caps.token_ids_param:
            body["logprobs"] = 1
        try:
            answer = await self._calls.together(COMPLETIONS, body)
        except StatusError as error:
            if not _refused(error):
                raise
            what = "a prompt of ids was refused, asked by text"
            if size > self._longest > 0:
                self._too_long = min(self._too_long, size)
                what = f"{size} tokens by ids were refused, as long ones are asked by text"
            else:
                self._off = True
            log.info("draft %r: %s: %s", self._name, what, error)
            raise NotByIds from error
        self._longest = max(self._longest, size)
        choices = answer.get("choices")
        shown = _shown(choices[0]) if isinstance(choices, list) and len(choices) == 1 else None
        if shown is None:
            raise BadAnswer(f"draft {self._name!r}: no answer to its prompt", provider=self._name)
        return Drafted(*shown, Usage.from_wire(answer.get("usage")))


def _refused(error: ProviderError) -> bool:
    """Whether it is said of the request, and would be said of it again."""
    if not isinstance(error, StatusError):
        return False
    return 400 <= error.status < 500 and error.status not in _PASSING


def _shown(choice: Any) -> tuple[str, tuple[int, ...] | None] | None:
    """(text, ids) of a choice."""
    if not isinstance(choice, Mapping):
        return None
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

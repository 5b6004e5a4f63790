"""A local transformers causal LM as the drafter.

Knows the model, its worker thread and one key-value cache per session, cropped to what the new
committed ids share with it; what a session reads and says in which vocabulary is its ``speech``.
Deliberately knows nothing of targets, rounds or acceptance. torch and transformers are imported in
the worker thread, when the first session opens.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from specroute.draft import torch_process
from specroute.draft.backoff import Backoff
from specroute.draft.base import Committed, Prompt, Proposal, common_prefix
from specroute.draft.crossed import Way
from specroute.draft.decoder import Cache
from specroute.draft.handing import Handing
from specroute.draft.model import Model
from specroute.draft.opening import begin
from specroute.draft.pages import OutOfPages
from specroute.draft.speech import Speech
from specroute.draft.stepper import Asking, Halted, Stepper
from specroute.errors import DraftError
from specroute.vocabulary import Vocabulary

T = TypeVar("T")

RETRY_LOAD = 300.0
"""Seconds until a model that failed to load is tried again."""
RETRY_FORWARD = (30.0, 300.0)
"""Seconds until a model that failed while drafting is tried again: first, most."""


class LocalDrafter:
    """Drafts with a model folder or hub id. Safetensors only; runs no code from the model.

    ``device``: ``auto`` (CUDA if there is any), ``cpu``, ``cuda`` or ``cuda:n``. ``dtype``:
    ``auto`` (bf16 on a GPU, fp32 on a CPU) or a torch name. ``max_memory``: a size such as
    ``"6GiB"`` that weights and caches stay under. ``min_probability``: a round's draft ends after a
    token that the model gives less; the token is proposed, so this changes no answer. ``generator``
    makes each session's numpy random
    generator; ``clock`` is monotonic seconds.

    Where the target's vocabulary is the model's own, ids are proposed, with the full q of sampled
    drafts. Otherwise the chat is rendered by the model's own template. If the target's vocabulary
    is known, its ids are proposed all the same: drawn from the shared tokens with their q (TLI), or
    re-encoded from a greedy text (SLEM), by ``way`` (``auto`` decides from what is measured). If it
    is not, text alone is proposed, drafted greedily.
    """

    def __init__(
        self,
        name: str,
        model: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_memory: str | None = None,
        way: Way = "auto",
        min_probability: float = 0.0,
        generator: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.way = way
        self.min_probability = min_probability
        self._source = model
        self._device, self._dtype, self._max_memory = device, dtype, max_memory
        self._generator = generator
        self._load_backoff = Backoff(clock, RETRY_LOAD, RETRY_LOAD)
        self._forward_backoff = Backoff(clock, *RETRY_FORWARD)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"specroute-draft-{name}")
        self._loaded: Model | None = None
        self._stepper: Stepper | None = None
        self._handing = Handing()
        self._keys = itertools.count()
        self._closed = False

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The model's own, once :meth:`load` is done."""
        return self._loaded.vocabulary if self._loaded else None

    @property
    def forwarded(self) -> int:
        """Tokens that went through the model so far."""
        return self._loaded.decoder.forwarded if self._loaded else 0

    @property
    def cached_tokens(self) -> int:
        """Tokens held in all sessions' caches."""
        return self._loaded.caches.tokens if self._loaded else 0

    async def load(self) -> None:
        """Load the model, once. A failure is remembered for ``RETRY_LOAD`` seconds."""
        if self._loaded is None:
            await self._run(self._load)

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> LocalSession:
        return await self._begin(prompt, target_vocabulary)

    async def open_aside(
        self, prompt: Prompt, target_vocabulary: Vocabulary | None
    ) -> LocalSession:
        """As :meth:`open`, for a prompt that is not asked again: its cache stays for nobody, and
        displaces nothing that is kept for requests."""
        return await self._begin(prompt, target_vocabulary, aside=True)

    async def _begin(
        self, prompt: Prompt, target_vocabulary: Vocabulary | None, aside: bool = False
    ) -> LocalSession:
        self._forward_backoff.check()
        await self.load()
        loaded = self._loaded
        assert loaded is not None
        rng = _lazily(self._generator)
        ids, speech = await self._run(
            lambda: begin(prompt, loaded, target_vocabulary, rng, self.way, self.min_probability)
        )
        return LocalSession(self, loaded, next(self._keys), ids, speech, aside)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            if self._stepper is not None:
                self._stepper.close()
            self._loaded = None

    async def _run(self, job: Callable[[], T]) -> T:
        """Run one job in the worker thread."""
        try:
            future = self._executor.submit(job)
        except RuntimeError as error:
            raise DraftError(f"drafter {self.name!r} is closed") from error
        return await self._outcome(asyncio.wrap_future(future))

    async def _step(self, asking: Asking[T], closed: threading.Event) -> T:
        """Draft beside all others; a cancelled caller ends its draft at its next forward."""
        cancelled = threading.Event()
        assert self._stepper is not None
        try:
            future = self._stepper.submit(asking, lambda: cancelled.is_set() or closed.is_set())
        except RuntimeError as error:
            raise DraftError(f"drafter {self.name!r} is closed") from error
        try:
            return await self._outcome(self._handing.awaited(future))
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except Halted:
            raise DraftError("the draft was cancelled") from None

    async def _outcome(self, future: asyncio.Future[T]) -> T:
        try:
            return await future
        except asyncio.CancelledError:
            if self._closed:
                raise DraftError(f"drafter {self.name!r} is closed") from None
            raise

    def _load(self) -> None:
        if self._loaded is not None:
            return
        self._load_backoff.check()
        torch_process.claim()
        try:
            model = Model(self._source, self._device, self._dtype, self._max_memory)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise self._load_backoff.failed(
                f"draft model {self._source!r} could not be loaded: {reason}"
            ) from error
        self._stepper = Stepper(model.decoder, self.name, self._handing.flush)
        self._loaded = model
        self._load_backoff.succeeded()


class LocalSession:
    """One request's drafting: its prompt's ids, its cache, its speech."""

    def __init__(
        self,
        drafter: LocalDrafter,
        model: Model,
        key: int,
        prompt_ids: tuple[int, ...],
        speech: Speech,
        aside: bool = False,
    ) -> None:
        self._drafter, self._model, self._key = drafter, model, key
        self._aside = aside
        self._prompt, self._speech = prompt_ids, speech
        self._closed = threading.Event()
        model.caches.open(key)

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        drafter = self._drafter
        drafter._forward_backoff.check()
        if k < 1 or self._closed.is_set():
            return self._nothing()
        began = time.perf_counter()
        proposal = await drafter._step(self._asking(committed, k, temperature), self._closed)
        # The wait for its turn included: that is what a draft takes.
        return replace(proposal, seconds=time.perf_counter() - began)

    async def aclose(self) -> None:
        self._closed.set()
        self._model.caches.close(self._key)

    def _nothing(self) -> Proposal:
        return Proposal("", () if self._speech.by_ids else None)

    def _asking(self, committed: Committed, k: int, temperature: float) -> Asking[Proposal]:
        """The job: bring the cache up to date, draft, hand back the cache. In the stepping
        thread."""
        context = (*self._prompt, *self._speech.read(committed))
        room = self._model.positions - len(context)
        if room < 1 or not context:
            return self._nothing()
        with self._cache(context) as cache:
            cache.crop(min(common_prefix(cache.ids, context), len(context) - 1))
            pending = context[len(cache.ids) :]
            drafting = self._speech.draft(pending, committed, k, room, temperature)
            logits = None
            while True:
                try:
                    ids = drafting.send(logits)
                except StopIteration as end:
                    proposal: Proposal = end.value
                    return proposal
                logits = yield ids, cache

    @contextmanager
    def _cache(self, context: Sequence[int]) -> Iterator[Cache]:
        """The session's cache while it is worked on. After a cancelled draft it is sound and kept;
        after a fault it is dropped."""
        import torch

        caches, backoff = self._model.caches, self._drafter._forward_backoff
        cache = caches.take(self._key)
        if cache is None:
            cache = self._model.decoder.new(context, kept=not self._aside)
        try:
            yield cache
        except Halted:
            caches.put(self._key, cache)
            raise DraftError("the draft was cancelled") from None
        except OutOfPages as error:
            cache.release()
            raise DraftError(f"draft {self._drafter.name!r}: {error}") from error
        except Exception as error:
            cache.release()
            if _out_of_memory(error):
                caches.clear()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                raise backoff.failed(f"draft {self._drafter.name!r} ran out of memory") from error
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise backoff.failed(f"draft {self._drafter.name!r} failed: {reason}") from error
        caches.put(self._key, cache)
        backoff.succeeded()


def _lazily(generator: Callable[[], Any] | None) -> Callable[[], Any]:
    """One numpy generator, made when it is first asked for."""
    made: list[Any] = []

    def rng() -> Any:
        import numpy as np

        if not made:
            made.append(generator() if generator else np.random.default_rng())
        return made[0]

    return rng


def _out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)

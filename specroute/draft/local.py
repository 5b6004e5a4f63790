"""A local transformers causal LM as the drafter.

Knows the model, its worker thread and one key-value cache per session, cropped to what the new
committed ids share with it; what a session reads and says in which vocabulary is its ``speech``.
Deliberately knows nothing of targets, rounds or acceptance. torch and transformers are imported in
the worker thread, when the first session opens.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specroute.draft import torch_process
from specroute.draft.backoff import Backoff
from specroute.draft.base import Committed, Prompt, Proposal, common_prefix
from specroute.draft.caches import Caches
from specroute.draft.crossed import Pair, TwoVocabularies, Way
from specroute.draft.decoder import Decoder, decoder_for
from specroute.draft.speech import OneVocabulary, Speech
from specroute.errors import DraftError
from specroute.vocabulary import Vocabulary, load_vocabulary

T = TypeVar("T")

RETRY_LOAD = 300.0
"""Seconds until a model that failed to load is tried again."""
RETRY_FORWARD = (30.0, 300.0)
"""Seconds until a model that failed while drafting is tried again: first, most."""
CACHE_BYTES = 2**30
"""Keys and values of all sessions together, unless ``max_memory`` says otherwise."""
BLOCK = 512
"""Prompt tokens per forward, so that a cancelled draft ends soon."""


class LocalDrafter:
    """Drafts with a model folder or hub id. Safetensors only; runs no code from the model.

    ``device``: ``auto`` (CUDA if there is any), ``cpu``, ``cuda`` or ``cuda:n``. ``dtype``:
    ``auto`` (bf16 on a GPU, fp32 on a CPU) or a torch name. ``max_memory``: a size such as
    ``"6GiB"`` that weights and caches stay under. ``generator`` makes each session's numpy random
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
        generator: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.way = way
        self._source = model
        self._device, self._dtype, self._max_memory = device, dtype, max_memory
        self._generator = generator
        self._load_backoff = Backoff(clock, RETRY_LOAD, RETRY_LOAD)
        self._forward_backoff = Backoff(clock, *RETRY_FORWARD)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"specroute-draft-{name}")
        self._loaded: _Loaded | None = None
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
        self._forward_backoff.check()
        await self.load()
        loaded = self._loaded
        assert loaded is not None
        rng = _lazily(self._generator)
        ids, speech = await self._run(
            lambda _: _begin(prompt, loaded, target_vocabulary, rng, self.way)
        )
        return LocalSession(self, loaded, next(self._keys), ids, speech)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._loaded = None

    async def _run(self, job: Callable[[threading.Event], T]) -> T:
        """Run one job in the worker thread; a cancelled caller ends it at its next forward."""
        cancelled = threading.Event()
        try:
            future = self._executor.submit(job, cancelled)
        except RuntimeError as error:
            raise DraftError(f"drafter {self.name!r} is closed") from error
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancelled.set()
            if self._closed:
                raise DraftError(f"drafter {self.name!r} is closed") from None
            raise

    def _load(self, _: threading.Event) -> None:
        if self._loaded is not None:
            return
        self._load_backoff.check()
        torch_process.claim()
        try:
            self._loaded = _Loaded(self._source, self._device, self._dtype, self._max_memory)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise self._load_backoff.failed(
                f"draft model {self._source!r} could not be loaded: {reason}"
            ) from error
        self._load_backoff.succeeded()


class LocalSession:
    """One request's drafting: its prompt's ids, its cache, its speech."""

    def __init__(
        self,
        drafter: LocalDrafter,
        loaded: _Loaded,
        key: int,
        prompt_ids: tuple[int, ...],
        speech: Speech,
    ) -> None:
        self._drafter, self._loaded, self._key = drafter, loaded, key
        self._prompt, self._speech = prompt_ids, speech
        self._closed = threading.Event()
        loaded.caches.open(key)

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        drafter = self._drafter
        drafter._forward_backoff.check()
        if k < 1 or self._closed.is_set():
            return self._nothing()
        return await drafter._run(lambda stop: self._propose(committed, k, temperature, stop))

    async def aclose(self) -> None:
        self._closed.set()
        self._loaded.caches.close(self._key)

    def _nothing(self) -> Proposal:
        return Proposal("", () if self._speech.by_ids else None)

    def _propose(
        self, committed: Committed, k: int, temperature: float, stop: threading.Event
    ) -> Proposal:
        """The job: bring the cache up to date, draft, hand back the cache. In the worker thread."""
        began = time.perf_counter()
        context = (*self._prompt, *self._speech.read(committed))
        room = self._loaded.positions - len(context)
        if room < 1 or not context:
            return self._nothing()
        with self._cache(stop) as (cache, halted):
            forward = self._loaded.decoder.forward

            def step(ids: Sequence[int]) -> Any:
                halted()
                return forward(ids, cache)

            keep = min(common_prefix(cache.ids, context), len(context) - 1)
            cache.crop(keep)
            pending = context[len(cache.ids) :]
            for start in range(0, max(0, len(pending) - BLOCK), BLOCK):
                step(pending[start : start + BLOCK])
            pending = pending[max(0, math.ceil(len(pending) / BLOCK) - 1) * BLOCK :]
            proposal = self._speech.draft(step, pending, committed, k, room, temperature)
        return replace(proposal, seconds=time.perf_counter() - began)

    @contextmanager
    def _cache(self, stop: threading.Event) -> Iterator[tuple[Any, Callable[[], None]]]:
        """The session's cache while it is worked on, and a check that ends cancelled work.

        After a cancelled draft the cache is sound and kept; after a fault it is dropped.
        """
        import torch

        def halted() -> None:
            if stop.is_set() or self._closed.is_set():
                raise _Halted

        caches, backoff = self._loaded.caches, self._drafter._forward_backoff
        cache = caches.take(self._key) or self._loaded.decoder.new()
        try:
            with torch.inference_mode():
                yield cache, halted
        except _Halted:
            caches.put(self._key, cache)
            raise DraftError("the draft was cancelled") from None
        except Exception as error:
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


class _Halted(Exception):
    """The caller is gone."""


class _Loaded:
    """A model on its device, ready to run."""

    def __init__(self, source: str, device: str, dtype: str, max_memory: str | None) -> None:
        self.vocabulary = load_vocabulary(source)
        import torch
        from transformers import AutoModelForCausalLM

        where = _device(device)
        kind = _dtype(dtype, where)
        folder = Path(source).expanduser()
        with _no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                str(folder) if folder.is_dir() else source,
                dtype=kind,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=folder.is_dir(),
            )
        model.eval().requires_grad_(False)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        limit = CACHE_BYTES if max_memory is None else _bytes(max_memory) - weights
        if limit <= 0:
            raise ValueError(f"its weights take {weights:,} bytes, max_memory is {max_memory}")
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_token = 2 * config.num_hidden_layers * heads * size * kind.itemsize
        self.caches = Caches(max(1, limit // per_token))
        self.positions: int = getattr(config, "max_position_embeddings", None) or 2**31
        self.decoder: Decoder = decoder_for(model.to(torch.device(where)))
        self._outputs: int = config.vocab_size
        self._pairs: dict[str, Pair] = {}

    def pair(self, target: Vocabulary) -> Pair:
        """This model and a target with another vocabulary."""
        found = self._pairs.get(target.fingerprint)
        if found is None:
            found = self._pairs[target.fingerprint] = Pair(self.vocabulary, target, self._outputs)
        return found


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """A library doesn't draw on its user's terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _begin(
    prompt: Prompt,
    loaded: _Loaded,
    target: Vocabulary | None,
    rng: Callable[[], Any],
    way: Way,
) -> tuple[tuple[int, ...], Speech]:
    """(the prompt in the draft's ids, how it speaks to the target). In the worker thread: a large
    tokenizer takes its time."""
    own = loaded.vocabulary
    if target is not None and target.fingerprint == own.fingerprint:
        speech = OneVocabulary(own, rng)
        if prompt.ids is not None:
            return prompt.ids, speech
        opening, text = _render(prompt, own)
        return (*opening, *own.encode(text)), speech
    pair = None
    if target is not None:
        pair = loaded.pair(target)
        if prompt.messages is None and prompt.text is None and prompt.ids is not None:
            prompt = replace(prompt, text=target.decode(prompt.ids))
    opening, text = _render(prompt, own)
    return opening, TwoVocabularies(own, target, pair, rng, way, text)


def _render(prompt: Prompt, vocabulary: Vocabulary) -> tuple[tuple[int, ...], str]:
    """The prompt in the draft's own vocabulary: (a chat by its own template, ""), or (the start
    token, if there is one, and the text)."""
    try:
        if prompt.messages is not None:
            return vocabulary.render(prompt.messages), ""
    except ValueError as error:
        if prompt.text is None:
            raise DraftError(f"the draft can't render this chat: {error}") from error
    if prompt.text is None:
        raise DraftError("nothing to draft from: neither messages nor text is known")
    bos = vocabulary.bos_id
    if bos is None or vocabulary.encode(prompt.text[:64])[:1] == (bos,):
        return (), prompt.text
    return (bos,), prompt.text


def _device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"device is {device!r}, expected auto, cpu, cuda or cuda:n")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch sees no CUDA device")
    return device


def _dtype(dtype: str, device: str) -> Any:
    import torch

    if dtype == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    kind = getattr(torch, short.get(dtype, dtype), None)
    if kind not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype is {dtype!r}, expected auto, bfloat16, float16 or float32")
    return kind


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20}
_UNITS["gib"] = 2**30


def _bytes(size: str) -> int:
    """``"6GiB"`` → bytes."""
    text = size.strip()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(number) :].strip().lower()
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise ValueError(f"max_memory is {size!r}, expected a size such as '6GiB'") from None


def _out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)

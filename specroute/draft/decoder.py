"""One forward pass of a causal LM over a cache that can be cropped: the drafter's inner step.

Knows how to run any transformers model that way, and which models have a faster way. Knows
nothing of sessions, drafts or sampling. Everything here runs in the drafter's worker thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from specroute.draft.pages import PagePool


class Cache(Protocol):
    """The keys and values of one sequence; ``ids`` are the tokens it holds."""

    ids: list[int]

    def crop(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        ...

    def release(self) -> None:
        """Give its memory back. One of a pool is empty then and may be filled again; any other
        isn't used again."""
        ...


class Decoder(Protocol):
    """A model that goes on from caches."""

    batches: bool
    """Whether many sequences in one pass (:meth:`forward_many`) are faster than one by one."""
    pool: PagePool | None
    """Where its caches' memory comes from; ``None``: each has its own."""
    forwarded: int
    """Tokens that went through the model so far."""

    def new(self, ids: Sequence[int] = (), *, kept: bool = True) -> Cache:
        """A cache for a sequence that is going to hold ``ids``: empty, or with a beginning of them
        that is still there of another sequence. ``kept=False``: nothing of it stays for others."""
        ...

    def forward(self, ids: Sequence[int], cache: Any) -> Any:
        """Append ``ids`` (at least one) to the cache; the logits after the last, a 1-D tensor."""
        ...

    def forward_many(self, batch: Sequence[tuple[Sequence[int], Any]]) -> Any:
        """As :meth:`forward` for several caches at once; a row of logits for each. After an
        exception every cache holds what it held before."""
        ...


def decoder_for(model: Any, most_tokens: int = 2**16) -> Decoder:
    """The fastest decoder that computes what ``model`` computes; paged caches hold at most
    ``most_tokens`` together.

    Llama-shaped models get :class:`specroute.draft.llama.LlamaDecoder` if, run on a few tokens, it
    agrees with transformers' own forward; every other model runs through transformers.
    """
    from specroute.draft.llama import LlamaDecoder, fits

    general = TransformersDecoder(model)
    if fits(model):
        lean = LlamaDecoder(model, most_tokens)
        if _agree(lean, general):
            lean.forwarded = 0
            return lean
    general.forwarded = 0
    return general


def _agree(a: Decoder, b: Decoder) -> bool:
    """Whether both give the same logits, up to the number format's rounding."""
    import torch

    prompt, then = [1, 2, 3, 5, 8, 13, 21], [4, 6]
    with torch.inference_mode():
        caches = (a.new(), b.new())
        for ids in (prompt, then, [7]):
            x, y = (d.forward(ids, c).float() for d, c in zip((a, b), caches, strict=True))
            rounding = 1e-3 if getattr(a, "dtype", None) == torch.float32 else 0.1
            if not float((x - y).abs().max()) <= rounding * max(float(y.std()), 1e-3):
                return False
    for cache in caches:
        cache.release()
    return True


class TransformersCache:
    """transformers' ``DynamicCache`` and the ids in it."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.ids: list[int] = []
        self.layers = self._empty()

    def _empty(self) -> Any:
        from transformers import DynamicCache

        kinds = set(getattr(self._config, "layer_types", None) or ())
        if kinds <= {"full_attention", "sliding_attention", "chunked_attention"}:
            # Told of the config, it would drop what leaves a sliding window, and then can't go
            # back; so keep all: the attention masks still close the window.
            return DynamicCache()
        return DynamicCache(config=self._config)

    def release(self) -> None:
        self.ids, self.layers = [], None

    def crop(self, length: int) -> None:
        if length >= len(self.ids):
            return
        try:
            self.layers.crop(length - len(self.ids))  # negative: how many to remove
            whole = self.layers.get_seq_length() == length
        except (ValueError, RuntimeError, AttributeError):
            whole = False
        if whole:
            del self.ids[length:]
        else:  # a recurrent state can't go back: start again
            self.ids, self.layers = [], self._empty()


class TransformersDecoder:
    """Any causal LM through transformers' own forward, one sequence at a time.

    transformers batches sequences of its own (``ContinuousBatchingManager``), but draws their
    tokens itself: neither q nor a cache that can be cropped comes out of it.
    """

    batches = False
    pool: PagePool | None = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self.forwarded = 0

    def new(self, ids: Sequence[int] = (), *, kept: bool = True) -> TransformersCache:
        return TransformersCache(self._config)

    def forward(self, ids: Sequence[int], cache: TransformersCache) -> Any:
        import torch

        tokens = torch.tensor([ids], device=self._model.device)
        given = {self._cache_argument: cache.layers, **self._last_only}
        logits = self._model(input_ids=tokens, use_cache=True, **given).logits
        cache.ids.extend(ids)
        self.forwarded += len(ids)
        return logits[0, -1]

    def forward_many(self, batch: Sequence[tuple[Sequence[int], TransformersCache]]) -> Any:
        return [self.forward(ids, cache) for ids, cache in batch]

"""A causal LM on its device, ready to draft: weights, memory for its caches, its vocabulary.

Knows torch's and transformers' ways of loading; nothing of sessions. Safetensors only; no code from
the model is run. Everything here runs in the drafter's worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specroute.draft.caches import Caches
from specroute.draft.crossed import Pair
from specroute.draft.decoder import Decoder, decoder_for
from specroute.vocabulary import Vocabulary, load_vocabulary

CACHE_BYTES = 2**30
"""Keys and values of all sessions together, unless ``max_memory`` says otherwise."""


class Model:
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
        most = max(1, limit // per_token)
        self.positions: int = getattr(config, "max_position_embeddings", None) or 2**31
        self.decoder: Decoder = decoder_for(model.to(torch.device(where)), most)
        self.caches = Caches(most if self.decoder.pool is None else None)
        if self.decoder.pool is not None:
            self.decoder.pool.reclaim = self.caches.drop_oldest
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

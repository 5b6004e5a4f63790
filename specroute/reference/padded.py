"""Keys and values of several sequences in one cache, padded on the left to one length.

Knows tensors, (1, heads, tokens, width) a layer and sequence; deliberately no model and no
requests. Beside ``model.py`` the only file here that loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

Layers = Sequence[tuple[Any, Any]]
"""A layer's keys and values."""


def cache_of(layers: Layers) -> DynamicCache:
    """A cache that starts with a copy of ``layers``."""
    cache = DynamicCache()
    for i, (keys, values) in enumerate(layers):
        cache.update(keys, values, i)
    return cache


def left_padded(parts: Sequence[Layers], counts: Sequence[int]) -> tuple[DynamicCache, list[int]]:
    """(the sequences' ``parts`` of so many tokens in one cache, what was padded to each)."""
    width = max(counts)
    pads = [width - n for n in counts]
    layers = []
    for layer in zip(*parts, strict=True):
        keys, values = (
            torch.cat([pad(t, (0, 0, n, 0)) for t, n in zip(side, pads, strict=True)])
            for side in zip(*layer, strict=True)
        )
        layers.append((keys, values))
    return cache_of(layers), pads


def cut(cache: Any, row: int, first: int, last: int) -> list[tuple[Any, Any]]:
    """The places ``first`` to ``last`` of one row."""
    rows, places = slice(row, row + 1), slice(first, last)
    return [(layer.keys[rows, :, places], layer.values[rows, :, places]) for layer in cache.layers]

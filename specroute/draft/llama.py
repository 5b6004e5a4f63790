"""A lean forward pass for Llama-shaped models, many sequences at once.

At batch 1 a small model's step is mostly Python: transformers spends more time getting to the
matrix products than in them. This is the same arithmetic (pre-norm RMSNorm, rotary positions,
grouped-query attention, SwiGLU) in few operations over paged keys and values: one product for q, k
and v, one for gate and up, each over the tokens of all sequences. Knows nothing of drafts.
``decoder_for`` compares it with transformers' own forward before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from specroute.draft.pages import OutOfPages, PagePool

_SHAPES = {"llama", "mistral", "qwen2", "qwen3"}
_FIXED_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles don't depend on the sequence's length."""

PAGE = 32
"""Tokens a page."""


def fits(model: Any) -> bool:
    """Whether ``model`` has this shape; cautious."""
    import torch

    config = model.config
    if config.model_type not in _SHAPES or getattr(config, "hidden_act", None) != "silu":
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    rope = getattr(model.model.rotary_emb, "rope_type", None)
    if kinds != {"full_attention"} or window is not None or rope not in _FIXED_ROPE:
        return False
    return all(
        type(getattr(part, name)) is torch.nn.Linear
        for layer in model.model.layers
        for part, names in (
            (layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")),
            (layer.mlp, ("gate_proj", "up_proj", "down_proj")),
        )
        for name in names
    )


class LlamaCache:
    """One sequence's pages. Equal beginnings share theirs; a shared page is never written on."""

    def __init__(self, pool: PagePool, ids: Sequence[int] = (), *, kept: bool = True) -> None:
        """``ids``: what the sequence is going to hold. The cache begins with as much of it as is
        still there of other sequences, at least one token short of all. ``kept=False``: its own
        pages are blank again when it has gone."""
        self._pool = pool
        self._kept = kept
        self.ids: list[int] = []
        self.pages: list[int] = []
        self._keys: list[int] = []
        """Of each full page: content and everything before it."""
        while len(self.ids) + PAGE < len(ids):
            part = tuple(ids[len(self.ids) : len(self.ids) + PAGE])
            key = hash((self._keys[-1] if self._keys else 0, part))
            page = pool.share(key)
            if page is None:
                break
            self.pages.append(page)
            self._keys.append(key)
            self.ids += part

    @property
    def held(self) -> int:
        """Tokens that its pages have room for."""
        return len(self.pages) * PAGE

    def crop(self, length: int) -> None:
        if length >= len(self.ids):
            return
        del self.ids[length:]
        del self._keys[length // PAGE :]
        kept = -(-length // PAGE)
        self._pool.release(self.pages[kept:])
        del self.pages[kept:]

    def release(self) -> None:
        """Give every page back; the cache is empty then."""
        self.crop(0)
        self._pool.release(self.pages)  # reserved, never filled
        self.pages.clear()

    def reserve(self, length: int) -> list[tuple[int, int]]:
        """Make room for ``length`` tokens; (from, to) for each page that has to be copied first.
        Raises :class:`OutOfPages`, and has taken none then."""
        last = len(self.ids) // PAGE
        copied = len(self.ids) % PAGE > 0 and not self._pool.writable(self.pages[last])
        new: list[int] = []
        try:
            for _ in range(copied + max(-(-length // PAGE) - len(self.pages), 0)):
                new.append(self._pool.take())
        except OutOfPages:
            self._pool.release(new)
            raise
        copies = []
        if copied:
            copies.append((self.pages[last], new.pop()))
            self._pool.release([self.pages[last]])
            self.pages[last] = copies[0][1]
        self.pages += new
        return copies

    def filled(self, ids: Sequence[int]) -> None:
        """``ids`` have been written: full pages may be shared from now on."""
        self.ids.extend(ids)
        for number in range(len(self._keys), len(self.ids) // PAGE):
            part = tuple(self.ids[number * PAGE : (number + 1) * PAGE])
            self._keys.append(hash((self._keys[-1] if self._keys else 0, part)))
            if self._kept:
                self._pool.keep(self.pages[number], self._keys[-1])


class LlamaDecoder:
    """The lean forward pass over a loaded model, whose weights it shares."""

    batches = True

    def __init__(self, model: Any, most_tokens: int) -> None:
        """``most_tokens``: what keys and values may hold of all sequences together."""
        config = model.config
        self._rotary = model.model.rotary_emb
        self._embedding = model.model.embed_tokens.weight.detach()
        self._head = model.lm_head.weight.detach()
        self._head_bias = None if model.lm_head.bias is None else model.lm_head.bias.detach()
        self._norm = model.model.norm.weight.detach()
        self._eps: float = config.rms_norm_eps
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_size: int = model.model.layers[0].self_attn.head_dim
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._angles = 0
        self._cos: Any = None
        self._sin: Any = None
        self._stores: list[tuple[Any, Any]] = []
        """Keys and values of each layer: (kv heads, pages · PAGE, head size)."""
        self._room = 0
        self.pool: PagePool | None
        self._pages = self.pool = PagePool(most_tokens // PAGE)
        self.dtype = self._embedding.dtype
        self.forwarded = 0

    def new(self, ids: Sequence[int] = (), *, kept: bool = True) -> LlamaCache:
        return LlamaCache(self._pages, ids, kept=kept)

    def forward(self, ids: Sequence[int], cache: LlamaCache) -> Any:
        return self.forward_many([(ids, cache)])[0]

    def forward_many(self, batch: Sequence[tuple[Sequence[int], LlamaCache]]) -> Any:
        """Append to several caches; the logits after each one's last token, (B, vocabulary).

        After an exception every cache holds what it held before.
        """
        import torch
        from torch.nn import functional

        linear, rms_norm = functional.linear, functional.rms_norm
        heads, kv_heads, size, eps = self._heads, self._kv_heads, self._head_size, self._eps
        rotated, device = heads + kv_heads, self._embedding.device
        self._reserve(batch)
        layout = _laid_out(batch, heads // kv_heads, device)
        self._reach(layout.longest)
        flat = torch.tensor([token for ids, _ in batch for token in ids], device=device)
        count = len(flat)
        cos, sin = self._cos[layout.places], self._sin[layout.places]
        x = functional.embedding(flat, self._embedding)
        width = (x.shape[-1],)
        for layer, (keys, values) in zip(self._layers, self._stores, strict=True):
            qkv = linear(rms_norm(x, width, layer.norm_in, eps), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(count, rotated + kv_heads, size)
            qk = qkv[:, :rotated]
            if layer.q_norm is not None:
                q = rms_norm(qk[:, :heads], (size,), layer.q_norm, eps)
                qk = torch.cat((q, rms_norm(qk[:, heads:], (size,), layer.k_norm, eps)), 1)
            qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)
            keys[:, layout.slots] = qk[:, heads:].transpose(0, 1)
            values[:, layout.slots] = qkv[:, rotated:].transpose(0, 1)
            seen = [
                self._attend(group, qk[group.rows, :heads], keys, values) for group in layout.groups
            ]
            together = seen[0] if len(seen) == 1 else torch.cat(seen)[layout.back]
            x = x + linear(together, layer.out, layer.out_bias)
            both = linear(
                rms_norm(x, width, layer.norm_mlp, eps), layer.gate_up, layer.gate_up_bias
            )
            gate, up = both.chunk(2, -1)
            x = x + linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        for ids, cache in batch:
            cache.filled(ids)
        self.forwarded += count
        x = x[layout.last]
        return linear(rms_norm(x, width, self._norm, eps), self._head, self._head_bias)

    def _attend(self, group: _Group, q: Any, keys: Any, values: Any) -> Any:
        """Sequences with as many new tokens each, attended to together: (rows, heads · size)."""
        from torch.nn import functional

        heads, kv_heads, size = self._heads, self._kv_heads, self._head_size
        b, n, share = group.sequences, group.new, heads // kv_heads

        def gathered(store: Any) -> Any:
            if group.run is not None:  # no copy
                return store[:, group.run].unsqueeze(0)
            pages = store.view(kv_heads, -1, PAGE, size).index_select(1, group.tables)
            return pages.view(kv_heads, b, -1, size).transpose(0, 1)

        # The queries of a group of heads share their keys: stacked, not repeated.
        q = q.view(b, n, kv_heads, share, size).permute(0, 2, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            q.reshape(b, kv_heads, share * n, size),
            gathered(keys),
            gathered(values),
            attn_mask=group.mask,
        )
        seen = seen.view(b, kv_heads, share, n, size).permute(0, 3, 1, 2, 4)
        return seen.reshape(b * n, heads * size)

    def _reserve(self, batch: Sequence[tuple[Sequence[int], LlamaCache]]) -> None:
        copies: list[tuple[int, int]] = []
        try:
            for ids, cache in batch:
                copies += cache.reserve(len(cache.ids) + len(ids))
        finally:  # Where one finds no room, the others have their pages all the same.
            if self._pages.made > self._room:
                self._grow()
            for old, new in copies:
                for pair in self._stores:
                    for store in pair:
                        paged = store.view(self._kv_heads, -1, PAGE, self._head_size)
                        paged[:, new] = paged[:, old]

    def _grow(self) -> None:
        """Have memory for the pages in use, at least twice as much as before."""
        import torch

        room = min(self._pages.most, max(self._pages.made, 2 * self._room, 16))
        shape = (self._kv_heads, (room - self._room) * PAGE, self._head_size)
        if not self._stores:
            # Zeros: what a mask hides is still multiplied by 0, which a stray NaN would survive.
            self._stores = [
                (self._embedding.new_zeros(shape), self._embedding.new_zeros(shape))
                for _ in self._layers
            ]
        else:
            for number, (keys, values) in enumerate(self._stores):
                self._stores[number] = (
                    torch.cat((keys, keys.new_zeros(shape)), 1),
                    torch.cat((values, values.new_zeros(shape)), 1),
                )
        self._room = room

    def _reach(self, length: int) -> None:
        """Have the rotary angles of the first ``length`` positions."""
        import torch

        if length <= self._angles:
            return
        self._angles = max(512, 2 * length)
        positions = torch.arange(self._angles, device=self._embedding.device).unsqueeze(0)
        cos, sin = self._rotary(self._embedding[:1], positions)
        sin = sin[0].clone()
        sin[:, : self._head_size // 2].neg_()  # rotate_half(x)·sin is roll(x)·(-sin, sin)
        self._cos, self._sin = cos[0].unsqueeze(1), sin.unsqueeze(1)


class _Group(NamedTuple):
    """Sequences of a batch that have the same number of new tokens and so one attention."""

    rows: Any
    """Their tokens, in the batch's order: a slice, or indices."""
    sequences: int
    new: int
    tables: Any
    """Their pages, padded to the longest, flat."""
    run: slice | None
    """Where a single sequence lies, if its pages are in a row."""
    mask: Any


class _Layout(NamedTuple):
    """Where a batch's tokens stand. Slices where they can be: a batch of one is the usual one."""

    places: Any
    """Positions, for the rotary angles."""
    slots: Any
    """Where each token's key and value go."""
    groups: list[_Group]
    back: Any
    """From the groups' order to the batch's."""
    last: Any
    """The row of each sequence's last token."""
    longest: int


def _laid_out(
    batch: Sequence[tuple[Sequence[int], LlamaCache]], share: int, device: Any
) -> _Layout:
    import torch

    def tensor(values: list[int]) -> Any:
        return torch.tensor(values, device=device)

    if len(batch) == 1:
        ids, cache = batch[0]
        start, new = len(cache.ids), len(ids)
        end, first = start + new, cache.pages[0]
        if cache.pages == list(range(first, first + len(cache.pages))):
            base = first * PAGE
            mask = _mask([end], new, end, share, device) if new > 1 else None
            group = _Group(slice(None), 1, new, None, slice(base, base + end), mask)
            slots = slice(base + start, base + end)
            return _Layout(slice(start, end), slots, [group], None, slice(new - 1, new), end)
    places: list[int] = []
    slots_: list[int] = []
    last: list[int] = []
    rows: list[range] = []
    alike: dict[int, list[int]] = {}
    for number, (ids, cache) in enumerate(batch):
        start = len(cache.ids)
        span = range(start, start + len(ids))
        rows.append(range(len(places), len(places) + len(ids)))
        places += span
        slots_ += [cache.pages[place // PAGE] * PAGE + place % PAGE for place in span]
        last.append(len(places) - 1)
        alike.setdefault(len(ids), []).append(number)
    groups: list[_Group] = []
    order: list[int] = []
    for new, numbers in alike.items():
        own = [row for number in numbers for row in rows[number]]
        order += own
        tables = [batch[number][1].pages for number in numbers]
        widest = max(map(len, tables))
        ends = [len(batch[number][1].ids) + new for number in numbers]
        groups.append(
            _Group(
                slice(None) if len(alike) == 1 else tensor(own),
                len(numbers),
                new,
                tensor([page for t in tables for page in t + [0] * (widest - len(t))]),
                None,
                _mask(ends, new, widest * PAGE, share, device),
            )
        )
    back = None if len(groups) == 1 else tensor(order).argsort()
    return _Layout(tensor(places), tensor(slots_), groups, back, tensor(last), max(places) + 1)


def _mask(ends: list[int], new: int, width: int, share: int, device: Any) -> Any:
    """(sequences, 1, share · new, width): each new token sees what is before it, and itself."""
    import torch

    places = torch.arange(width, device=device)
    until = torch.tensor(ends, device=device).unsqueeze(1) - torch.arange(
        new - 1, -1, -1, device=device
    )
    visible = places < until.unsqueeze(-1)
    return visible.repeat(1, share, 1).unsqueeze(1)


class _Layer:
    """One layer's weights. The model's own q, k, v, gate and up become views of the joined ones."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in = layer.input_layernorm.weight.detach()
        self.norm_mlp = layer.post_attention_layernorm.weight.detach()
        self.qkv, self.qkv_bias = _join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate_up, self.gate_up_bias = _join(mlp.gate_proj, mlp.up_proj)
        self.out, self.out_bias = _join(attention.o_proj)
        self.down, self.down_bias = _join(mlp.down_proj)
        self.q_norm = self.k_norm = None
        if getattr(attention, "q_norm", None) is not None:
            self.q_norm = attention.q_norm.weight.detach()
            self.k_norm = attention.k_norm.weight.detach()


def _join(*parts: Any) -> tuple[Any, Any]:
    """Weights and biases of several linear layers as one, without keeping them twice."""
    import torch

    joined: list[Any] = []
    for name in ("weight", "bias"):
        tensors = [getattr(part, name) for part in parts]
        if tensors[0] is None:
            joined.append(None)
            continue
        whole = torch.cat([t.detach() for t in tensors]) if len(parts) > 1 else tensors[0].detach()
        start = 0
        for tensor in tensors:
            tensor.data = whole[start : start + tensor.shape[0]]
            start += tensor.shape[0]
        joined.append(whole)
    return joined[0], joined[1]

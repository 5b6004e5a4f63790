"""A lean forward pass for Llama-shaped models (Llama, Mistral, Qwen 2 and 3) at batch 1.

At batch 1 a small model's step is mostly Python: transformers spends more time getting to the
matrix products than in them. This is the same arithmetic (pre-norm RMSNorm, rotary positions,
grouped-query attention, SwiGLU) in few operations over preallocated keys and values: one product
for q, k and v, one for gate and up. Knows nothing of drafts. ``decoder_for`` compares it with
transformers' own forward before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SHAPES = {"llama", "mistral", "qwen2", "qwen3"}
_FIXED_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles don't depend on the sequence's length."""


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
    """Keys and values of one sequence, in buffers that double when they are full."""

    def __init__(self, decoder: LlamaDecoder) -> None:
        self._decoder = decoder
        self.ids: list[int] = []
        self.capacity = 0
        self.layers: list[tuple[Any, Any]] = []

    def crop(self, length: int) -> None:
        del self.ids[length:]

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens."""
        if length <= self.capacity:
            return
        capacity = max(256, self.capacity)
        while capacity < length:
            capacity *= 2
        held, grown = len(self.ids), []
        for layer in range(self._decoder.depth):
            pair = self._decoder.buffers(capacity)
            if self.layers:
                for new, old in zip(pair, self.layers[layer], strict=True):
                    new[:, :held] = old[:, :held]
            grown.append(pair)
        self.layers, self.capacity = grown, capacity


class LlamaDecoder:
    """The lean forward pass over a loaded model, whose weights it shares."""

    def __init__(self, model: Any) -> None:
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
        self.dtype = self._embedding.dtype
        self.depth = len(self._layers)
        self.forwarded = 0

    def new(self) -> LlamaCache:
        return LlamaCache(self)

    def buffers(self, capacity: int) -> tuple[Any, Any]:
        """Empty keys and values of one layer."""
        shape = (self._kv_heads, capacity, self._head_size)
        return self._embedding.new_empty(shape), self._embedding.new_empty(shape)

    def forward(self, ids: Sequence[int], cache: LlamaCache) -> Any:
        import torch
        from torch.nn import functional

        linear, rms_norm = functional.linear, functional.rms_norm
        attention = functional.scaled_dot_product_attention
        start, count = len(cache.ids), len(ids)
        end = start + count
        cache.reserve(end)
        self._reach(end)
        heads, kv_heads, size, eps = self._heads, self._kv_heads, self._head_size, self._eps
        group, rotated = heads // kv_heads, heads + kv_heads
        cos, sin = self._cos[start:end], self._sin[start:end]
        tokens = torch.tensor(ids, device=self._embedding.device)
        x = functional.embedding(tokens, self._embedding)
        width = (x.shape[-1],)
        mask = None
        if count > 1:  # the queries of a group share their keys, so they are stacked, not repeated
            visible = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(start)
            mask = visible.repeat(group, 1)
        for layer, (keys, values) in zip(self._layers, cache.layers, strict=True):
            qkv = linear(rms_norm(x, width, layer.norm_in, eps), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(count, rotated + kv_heads, size)
            qk = qkv[:, :rotated]
            if layer.q_norm is not None:
                q = rms_norm(qk[:, :heads], (size,), layer.q_norm, eps)
                qk = torch.cat((q, rms_norm(qk[:, heads:], (size,), layer.k_norm, eps)), 1)
            qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)
            keys[:, start:end] = qk[:, heads:].transpose(0, 1)
            values[:, start:end] = qkv[:, rotated:].transpose(0, 1)
            q = qk[:, :heads].view(count, kv_heads, group, size).permute(1, 2, 0, 3)
            q = q.reshape(1, kv_heads, group * count, size)
            seen = attention(
                q, keys[:, :end].unsqueeze(0), values[:, :end].unsqueeze(0), attn_mask=mask
            )
            seen = seen.view(kv_heads, group, count, size).permute(2, 0, 1, 3)
            x = x + linear(seen.reshape(count, heads * size), layer.out, layer.out_bias)
            both = linear(
                rms_norm(x, width, layer.norm_mlp, eps), layer.gate_up, layer.gate_up_bias
            )
            gate, up = both.chunk(2, -1)
            x = x + linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        cache.ids.extend(ids)
        self.forwarded += count
        return linear(rms_norm(x[-1], width, self._norm, eps), self._head, self._head_bias)

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

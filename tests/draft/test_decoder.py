"""The lean decoder computes what transformers computes, or isn't used."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specroute.draft.decoder import TransformersDecoder, decoder_for
from specroute.draft.llama import LlamaDecoder

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT2 = GPT2Config(vocab_size=97, n_positions=700, n_embd=32, n_layer=2, n_head=4)


@pytest.mark.parametrize(
    ("model", "config", "expected"),
    [
        (LlamaForCausalLM, LlamaConfig(**SIZES), LlamaDecoder),
        (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True), LlamaDecoder),
        (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3), LlamaDecoder),
        (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True), LlamaDecoder),
        (Qwen2ForCausalLM, Qwen2Config(**SIZES), LlamaDecoder),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), LlamaDecoder),
        (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=None), LlamaDecoder),
        (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=8), TransformersDecoder),
        (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu"), TransformersDecoder),
        (GPT2LMHeadModel, GPT2, TransformersDecoder),
    ],
)
def test_blocks_crops_and_growth_change_nothing(model, config, expected):
    """Logits after blocks, a crop and a grown cache are those of one forward over all ids."""
    torch.manual_seed(1)
    model = model(config).eval()
    decoder = decoder_for(model)
    assert type(decoder) is expected
    assert decoder.forwarded == 0
    ids = torch.randint(0, 97, (600,)).tolist()
    with torch.inference_mode():
        cache = decoder.new()
        decoder.forward(ids[:30], cache)
        decoder.forward([5], cache)
        decoder.forward([6, 7], cache)
        cache.crop(28)
        assert len(cache.ids) == 28
        decoder.forward(ids[len(cache.ids) : 300], cache)
        decoder.forward(ids[300:599], cache)
        got = decoder.forward(ids[599:], cache)
        whole = model(torch.tensor([ids])).logits[0, -1]
    assert cache.ids == ids
    assert decoder.forwarded == 600 + 5
    assert torch.allclose(got, whole, atol=1e-3)


def test_a_lean_decoder_that_disagrees_is_not_used(monkeypatch):
    """An unforeseen variant of a known shape runs through transformers."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        model.model.layers[0].input_layernorm.register_forward_hook(lambda *a: a[-1] * 1.5)
    assert type(decoder_for(model)) is TransformersDecoder


def test_the_models_own_weights_are_shared():
    """Joined weights replace the model's: nothing is held twice, the model still works."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.inference_mode():
        before = model(torch.tensor([[1, 2, 3]])).logits
        decoder = LlamaDecoder(model, 1000)
        after = model(torch.tensor([[1, 2, 3]])).logits
    assert torch.equal(before, after)
    joined = decoder._layers[0].qkv
    key = model.model.layers[0].self_attn.k_proj.weight
    assert key.untyped_storage().data_ptr() == joined.untyped_storage().data_ptr()

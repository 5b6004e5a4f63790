"""Tiny models made on the spot: a byte-level tokenizer and a random Llama, saved as a folder.

Knows nothing of language: the weights are random, so only mechanics can be tested with them.
"""

from __future__ import annotations

import json
from pathlib import Path

TEXT = (
    "Hello, how can I help you today? Your order 7731 was shipped and the refund is on its way.\n"
    "您好，请问有什么可以帮您？您的订单已发货，退款将在三个工作日内到账。\n"
    "def main(argv=None):\n    for i in range(10):\n        print(i, end=' ')\n    return 0\n"
)
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def save_tokenizer(
    folder: Path,
    text: str = TEXT,
    vocab_size: int = 400,
    template: str | None = TEMPLATE,
    eos: str | None = "<|end|>",
) -> Path:
    """A byte-level BPE trained on ``text``; no pad token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    fast.add_special_tokens({"additional_special_tokens": SPECIAL})
    if template:
        fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def save_sentencepiece(folder: Path, text: str = TEXT, vocab_size: int = 300) -> Path:
    """A SentencePiece-shaped BPE: ``▁`` for a space, one put before the text, ``<0xNN>`` for bytes
    without a piece; ``<s>`` before every text that is no chat."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    shape = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    draft = Tokenizer(models.BPE())
    draft.normalizer = shape
    draft.train_from_iterator(
        text.split("\n"), trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False)
    )
    trained = json.loads(draft.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: i for i, piece in enumerate([*pieces, *trained["vocab"]])}
    backend = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(pair) for pair in trained["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = shape
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocab["<s>"])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    return folder


def save_model(
    folder: Path,
    layers: int = 2,
    hidden: int = 64,
    vocab_size: int = 400,
    seed: int = 0,
    eos: int | list[int] | None = 0,
    positions: int = 2048,
) -> Path:
    """A random Llama; ids from ``save_tokenizer`` fit."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        eos_token_id=eos,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder

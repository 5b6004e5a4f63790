"""``python convert.py MODEL.gguf FOLDER``: a GGUF's weights and tokenizer for transformers, float32.

Float32 because at lower precision a batch and a single step differ too often to compare answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    source.parent,
    gguf_file=source.name,
    dtype=torch.float32,
    quantization_config=GgufConfig(dequantize=True),
)
# What is saved is no longer quantized.
model.config.__dict__.pop("quantization_config", None)
model.hf_quantizer = None
tokenizer.save_pretrained(folder)
model.save_pretrained(folder)

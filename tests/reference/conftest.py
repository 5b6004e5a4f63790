"""What the reference server's tests share: a tiny random model, and helpers over raw HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specroute.reference.running import ReferenceServer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "你好，世界",
    "def f(x):\n    return x + 1\n",
]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama and a byte-level BPE tokenizer with a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,  # peaked enough that neighbours in rank are far apart
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_server(model_dir: Path) -> Iterator[ReferenceServer]:
    """A server over the random model, in a thread."""
    with ReferenceServer(model_dir) as server:
        yield server


def messages(text: str) -> list[dict[str, Any]]:
    """One user message."""
    return [{"role": "user", "content": text}]


class Http:
    """Raw JSON over one kept-alive connection."""

    def __init__(self, server: ReferenceServer) -> None:
        self.server = server
        self._client = httpx2.Client(base_url=server.url, timeout=20, verify=False)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        """Send ``body`` with the server's own model name, unless it names another."""
        return self._client.post(path, json={"model": self.server.model, **body})

    def get(self, path: str) -> httpx2.Response:
        return self._client.get(path)

    def complete(self, **body: Any) -> dict[str, Any]:
        """An unstreamed completion, which must succeed."""
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, **body: Any) -> dict[str, Any]:
        """An unstreamed chat completion, which must succeed."""
        answer = self.post("/v1/chat/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """All chunks of a stream, which must end with ``[DONE]``."""
        answer = self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        return list(events(answer.text))

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def events(body: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a complete event stream; it must end with ``[DONE]``."""
    datas = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert datas[-1] == "[DONE]"
    yield from map(json.loads, datas[:-1])

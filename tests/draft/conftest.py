"""Torch on one thread; tiny random models made once."""

import pytest
import torch

from tests.support.tiny import save_model, save_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random two-layer Llama with its tokenizer."""
    path = tmp_path_factory.mktemp("draft")
    save_tokenizer(path)
    return save_model(path)

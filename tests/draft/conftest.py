"""Torch on one thread; a tiny random model made once; property tests as in tests/maths."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support.tiny import save_model, save_tokenizer

torch.set_num_threads(1)
settings.register_profile(
    "specroute", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("specroute")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random two-layer Llama with its tokenizer."""
    path = tmp_path_factory.mktemp("draft")
    save_tokenizer(path)
    return save_model(path)

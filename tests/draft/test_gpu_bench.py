"""The GPU script runs, as far as it can without one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

FILE = Path(__file__).resolve().parents[2] / "bench" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # Its dataclasses look there.
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and a status of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().out == "no CUDA device: nothing measured\n"


def test_a_dry_run_measures_what_a_gpu_would_be_measured_for(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table and JSON agree; many drafts share a step; the limit is what reading takes."""
    out = tmp_path / "figures.json"
    assert gpu.main(["--cpu", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    printed = capsys.readouterr().out
    one, four = found["rows"]
    assert found["decoder"] == "LlamaDecoder"
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert one["steps"] == gpu.DRY.tokens
    assert one["tokens_per_step"] == 1
    assert four["tokens_per_step"] > 2
    for row in (one, four):
        at_once = row["tokens_per_step"]
        step_s = row["read_gb_per_step"] / found["bandwidth_gb_per_s"]
        assert row["limit_tokens_per_s"] == pytest.approx(at_once / step_s)
        assert row["of_limit"] == pytest.approx(row["tokens_per_s"] / row["limit_tokens_per_s"])
        assert f"| {row['concurrency']} | {row['tokens_per_s']:.0f} |" in printed
    assert found["gpu_busy"] is None
    assert not found["left_out"]


def test_the_weights_that_a_step_reads_are_the_models_own(gpu: ModuleType, tmp_path: Path) -> None:
    """Its formula against the model that is made, but for norms and biases."""
    from transformers import AutoModelForCausalLM

    gpu._make(tmp_path, gpu.TINY, "cpu")
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path), dtype=torch.float32)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert gpu._bytes_read(gpu.TINY, 4)[0] == 4 * matrices
    cache = model(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert gpu._bytes_read(gpu.TINY, 4)[1] == 4 * held / 3


def test_rows_that_there_is_no_time_for_are_named(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is always measured; a budget that is spent leaves out the others."""
    assert gpu.main(["--cpu", "--budget", "0", "--concurrency", "2,3,4"]) == 0
    printed = capsys.readouterr().out
    assert "left out for want of time: 3, 4 at once" in printed
    assert "| 3 |" not in printed

"""The draft engine on a GPU: tokens a second against what the memory's bandwidth allows.

    python bench/gpu.py [--json OUT.json] [--concurrency 1,8,32,128] [--budget 200]
    python bench/gpu.py --cpu          # a dry run of the script itself, tiny, on the CPU

A model of a usual draft's size (Qwen2.5-0.5B's shape, bf16) with random weights is made in place:
nothing is downloaded, and how fast a step is doesn't depend on what the weights say. Each request
has a prompt of its own behind a common beginning and drafts greedily in rounds of K, as requests
do; prompts are read before the clock starts.

A step has to read every weight once and the keys and values of all sequences in it, so tokens a
second can't exceed sequences / ((weights + keys and values) / bandwidth); the bandwidth is that of
a large copy on the same device, which reads and writes. "Of limit" is what was reached of that.
`model.generate`, one request at a time, does the same work beside it. Where there is a GPU, the
profiler says for how much of a step's time it was busy: the rest is Python and launches, which CUDA
graphs would spare. The engine uses neither CUDA graphs nor torch.compile.

Without a CUDA device it says so, and ends with status 2. Needs torch and transformers alone; stops
beginning new rows when ``--budget`` seconds are over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

NOTHING = "no CUDA device: nothing measured"
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
"""Qwen2.5-0.5B's config.json."""
TINY: dict[str, Any] = {
    **SHAPE,
    "vocab_size": 5000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    shape: dict[str, Any]
    prompt: int
    tokens: int
    k: int
    concurrency: tuple[int, ...]
    copied: int
    """Bytes of the copy that the bandwidth is measured with."""
    alone: int
    """Requests of ``model.generate``."""


FULL = Sizes(SHAPE, 256, 96, 8, (1, 8, 32, 128), 2**30, 2)
DRY = Sizes(TINY, 24, 8, 4, (1, 4), 2**22, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """What one number of requests at once came to."""

    concurrency: int
    tokens_per_s: float
    steps: int
    tokens_per_step: float
    ms_per_step: float
    read_gb_per_step: float
    limit_tokens_per_s: float
    of_limit: float
    of_generate: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="a tiny dry run without a GPU")
    parser.add_argument("--concurrency", help="requests at once, as 1,8,32")
    parser.add_argument("--budget", type=float, default=200, help="seconds; then no further row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    a = parser.parse_args(argv)
    import torch

    if not (a.cpu or torch.cuda.is_available()):
        print(NOTHING)
        return 2
    sizes = DRY if a.cpu else FULL
    counts = tuple(map(int, a.concurrency.split(","))) if a.concurrency else sizes.concurrency
    device = "cpu" if a.cpu else "cuda"
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder), sizes.shape, device)
        found = asyncio.run(_measure(Path(folder), sizes, counts, device, a.budget))
    _show(found)
    text = json.dumps(found, indent=2)
    if a.json is not None:
        a.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _make(folder: Path, shape: dict[str, Any], device: str) -> None:
    """A model with random weights, and the bundled draft's tokenizer beside it."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from specroute.reference.bundled import draft_dir

    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**shape, bos_token_id=None, eos_token_id=None))
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    model.to(kind).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(draft_dir())).save_pretrained(folder)


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _bandwidth(size: int, device: str) -> float:
    """Bytes a second that a copy reads and writes, the best of ten."""
    import torch

    source = torch.empty(size, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(11):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size / best


def _prompts(count: int, length: int, vocabulary: int) -> list[tuple[int, ...]]:
    """A common beginning, a half of each, and then its own."""
    import random

    common = [7 + i % 50 for i in range(length // 2)]
    rng = random.Random(0)
    rest = length - len(common)
    own = [[rng.randrange(60, min(vocabulary, 4000)) for _ in range(rest)] for _ in range(count)]
    return [(*common, *each) for each in own]


async def _measure(
    folder: Path, sizes: Sizes, counts: tuple[int, ...], device: str, budget: float
) -> dict[str, Any]:
    import torch
    import transformers

    from specroute.context import Committed, Prompt
    from specroute.draft.local import LocalDrafter

    began = time.perf_counter()
    drafter = LocalDrafter("bench", str(folder), device=device)
    await drafter.load()
    model, stepper = drafter._loaded, drafter._stepper
    assert model is not None
    assert stepper is not None
    # What random weights say is no end of an answer.
    model.vocabulary.eos_ids = frozenset()
    decoder: Any = model.decoder
    config = transformers.AutoConfig.from_pretrained(str(folder))
    size = 4 if device == "cpu" else 2
    weights, per_token = _bytes_read(sizes.shape, size)
    bandwidth = _bandwidth(sizes.copied, device)
    prompts = _prompts(max(counts), sizes.prompt, config.vocab_size)

    async def draft(ids: tuple[int, ...], told: Callable[[], Any]) -> int:
        session = await drafter.open(Prompt(None, None, ids), model.vocabulary)
        first = await session.propose(Committed("", ()), 1)
        committed = first.ids or ()
        await told()
        while len(committed) < sizes.tokens + 1:
            k = min(sizes.k, sizes.tokens + 1 - len(committed))
            committed += (await session.propose(Committed("", committed), k)).ids or ()
        await session.aclose()
        return len(committed) - 1

    async def together(count: int) -> tuple[float, int, int, int]:
        """(seconds, tokens drafted, forwarded, steps) from when every prompt has been read."""
        ready, go = asyncio.Barrier(count + 1), asyncio.Event()

        async def told() -> None:
            await ready.wait()
            await go.wait()  # Not before what was done by now is read.

        tasks = [asyncio.ensure_future(draft(ids, told)) for ids in prompts[:count]]
        await ready.wait()
        forwarded, steps, start = drafter.forwarded, stepper.steps, time.perf_counter()
        go.set()
        made = sum(await asyncio.gather(*tasks))
        _wait(device)
        took = time.perf_counter() - start
        return took, made, drafter.forwarded - forwarded, stepper.steps - steps

    alone = await asyncio.to_thread(_generate, folder, prompts[: sizes.alone], sizes.tokens, device)
    rows = []
    for count in counts:
        if rows and time.perf_counter() - began > budget:
            break
        await together(count)  # Kernels are chosen, memory is taken.
        took, made, forwarded, steps = await together(count)
        at_once = forwarded / steps
        read = weights + at_once * (sizes.prompt + sizes.tokens / 2) * per_token
        limit = at_once * bandwidth / read
        rate = made / took
        rows.append(
            Row(count, rate, steps, at_once, 1e3 * took / steps, read / 1e9, limit, rate / limit,
                rate / alone)
        )  # fmt: skip
    busy = await asyncio.to_thread(_busy, decoder, prompts, device)
    pool = decoder.pool
    await drafter.aclose()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu (dry run, tiny model)",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "decoder": type(decoder).__name__,
        "batches": decoder.batches,
        "cache_pages": pool.most if pool is not None else None,
        "parameters_read_bytes": weights,
        "kv_bytes_per_token": per_token,
        "bandwidth_gb_per_s": bandwidth / 1e9,
        "prompt": sizes.prompt,
        "tokens": sizes.tokens,
        "k": sizes.k,
        "generate_tokens_per_s": alone,
        "gpu_busy": busy,
        "rows": [asdict(row) for row in rows],
        "left_out": list(counts[len(rows) :]),
        "seconds": time.perf_counter() - began,
    }


def _bytes_read(shape: dict[str, Any], size: int) -> tuple[int, int]:
    """(weights that a step reads, keys and values of one token), in bytes. The head reads the
    whole (tied) embedding; looking tokens up reads next to nothing of it."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    head = hidden // heads
    attention = hidden * (hidden + 2 * kv_heads * head) + hidden * hidden
    mlp = 3 * hidden * shape["intermediate_size"]
    weights = shape["vocab_size"] * hidden + layers * (attention + mlp)
    return weights * size, 2 * layers * kv_heads * head * size


def _generate(folder: Path, prompts: Sequence[tuple[int, ...]], tokens: int, device: str) -> float:
    """Tokens a second of ``model.generate``, one request after another, prompts included in
    neither: what the first token takes is timed by itself and taken off."""
    import torch
    from transformers import AutoModelForCausalLM

    kind = torch.float32 if device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=kind).to(device).eval()

    def made(ids: tuple[int, ...], count: int) -> float:
        prompt = torch.tensor([ids], device=device)
        _wait(device)
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                min_new_tokens=count, do_sample=False, pad_token_id=0,
            )  # fmt: skip
        _wait(device)
        return time.perf_counter() - began

    made(prompts[0], 2)
    seconds = sum(made(ids, tokens + 1) - made(ids, 1) for ids in prompts)
    return len(prompts) * tokens / max(seconds, 1e-9)


def _busy(decoder: Any, prompts: Sequence[tuple[int, ...]], device: str) -> Any:
    """The share of a step's time in which the GPU computed, by torch's profiler; for one sequence
    and for 32. ``None`` without a GPU, and why where the profiler has nothing to say."""
    if device != "cuda":
        return None
    import torch
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    for count in (1, min(32, len(prompts))):
        try:
            caches = [decoder.new() for _ in range(count)]
            with torch.inference_mode():
                for ids, cache in zip(prompts, caches, strict=False):
                    decoder.forward(ids, cache)
                decoder.forward_many([((5,), cache) for cache in caches])
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(8):
                    decoder.forward_many([((5,), cache) for cache in caches])
                torch.cuda.synchronize()
                wall = time.perf_counter() - began
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    for _ in range(8):
                        decoder.forward_many([((5,), cache) for cache in caches])
                    torch.cuda.synchronize()
            kernels = sum(event.self_device_time_total for event in seen.key_averages()) / 1e6
            found[str(count)] = {"step_ms": wall / 8 * 1e3, "busy": kernels / wall}
            for cache in caches:
                cache.release()
        except Exception as error:  # noqa: BLE001 - the other figures stand without it
            found[str(count)] = f"not measured: {type(error).__name__}: {error}"
    return found


def _show(found: dict[str, Any]) -> None:
    print(
        f"{found['device']}: {found['decoder']}, prompts of {found['prompt']} tokens, "
        f"{found['tokens']} drafted in rounds of {found['k']}; a copy moves "
        f"{found['bandwidth_gb_per_s']:.0f} GB/s, a step reads "
        f"{found['parameters_read_bytes'] / 1e9:.2f} GB of weights"
    )
    print(f"model.generate, one by one: {found['generate_tokens_per_s']:.0f} tokens/s")
    print("| at once | tokens/s | of generate | ms a step | tokens a step | limit | of limit |")
    print("|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        print(
            f"| {row['concurrency']} | {row['tokens_per_s']:.0f} | {row['of_generate']:.1f} | "
            f"{row['ms_per_step']:.2f} | {row['tokens_per_step']:.1f} | "
            f"{row['limit_tokens_per_s']:.0f} | {row['of_limit']:.3f} |"
        )
    for count, busy in (found["gpu_busy"] or {}).items():
        said = busy if isinstance(busy, str) else f"{busy['busy']:.2f} of {busy['step_ms']:.2f} ms"
        print(f"GPU busy in a step of {count}: {said}")
    if found["left_out"]:
        print(f"left out for want of time: {', '.join(map(str, found['left_out']))} at once")


if __name__ == "__main__":
    sys.exit(main())

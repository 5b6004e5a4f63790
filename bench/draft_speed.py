"""How fast the local drafter drafts at batch 1, beside ``model.generate`` on the same model.

    python bench/draft_speed.py [--model DIR] [--tokens 64] [--k 8] [--repeats 9] [--threads 1]

Three ways to the same greedy tokens, interleaved, prompt included: transformers' own ``generate``;
the drafter in one go; the drafter in rounds of K, each accepted whole, as in use. All three go
through their public doors (the drafter's worker thread included), stop at the same end token, and
must give the same ids. Without ``--model`` the bundled draft is used, or a random Llama of its size
where that is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

QUESTIONS = (
    "Where is my order? I was told it would be here by Friday.",
    "我的退款什么时候到账？订单已经退回一周了。",
    "How do I change the delivery address after I have paid?",
    "I want to return the shoes from my last order, they are too small.",
)
WARM_UP = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model folder; default: the bundled draft")
    parser.add_argument("--tokens", type=int, default=64, help="at most this many a prompt")
    parser.add_argument("--k", type=int, default=8, help="drafted tokens a round")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="torch threads, for all three")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return asyncio.run(compare(arguments, arguments.model or default_model(Path(scratch))))


def default_model(scratch: Path) -> str:
    """The bundled draft, or a random Llama about its size."""
    from specroute.reference.bundled import draft_dir

    try:
        return str(draft_dir())
    except FileNotFoundError:
        pass
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.tiny import save_model, save_tokenizer

    print("the bundled draft isn't installed: a random Llama of its size instead", file=sys.stderr)
    save_tokenizer(scratch)
    return str(save_model(scratch, layers=2, hidden=128, vocab_size=4096, eos=None))


async def compare(arguments: argparse.Namespace, folder: str) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    from specroute.context import Committed, Prompt
    from specroute.draft.local import LocalDrafter

    torch.set_num_threads(arguments.threads)
    drafter = LocalDrafter("bench", folder, device="cpu")
    await drafter.load()
    vocabulary = drafter.vocabulary
    assert vocabulary is not None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [vocabulary.render([{"role": "user", "content": q}]) for q in QUESTIONS]
    n, k = arguments.tokens, arguments.k

    async def generate(ids: tuple[int, ...]) -> tuple[int, ...]:
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        out = model.generate(
            prompt, attention_mask=mask, max_new_tokens=n, do_sample=False, pad_token_id=0
        )
        return tuple(out[0, len(ids) :].tolist())

    async def draft(ids: tuple[int, ...], size: int) -> tuple[int, ...]:
        session = await drafter.open(Prompt(None, None, ids), vocabulary)
        made: tuple[int, ...] = ()
        while len(made) < n:
            proposal = await session.propose(Committed("", made), min(size, n - len(made)))
            made += proposal.ids or ()
            if proposal.ended:
                break
        await session.aclose()
        return made

    ways = {
        "model.generate": generate,
        "drafter, one go": lambda ids: draft(ids, n),
        f"drafter, rounds of {k}": lambda ids: draft(ids, k),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    agree = True
    for repeat in range(-WARM_UP, arguments.repeats):
        order = list(ways)
        order = order[repeat % 3 :] + order[: repeat % 3]
        seconds = dict.fromkeys(ways, 0.0)
        made: dict[str, list[tuple[int, ...]]] = {name: [] for name in ways}
        for ids in prompts:
            for name in order:
                began = time.perf_counter()
                made[name].append(await ways[name](ids))
                seconds[name] += time.perf_counter() - began
        total = sum(map(len, made["model.generate"]))
        agree &= all(ids == made["model.generate"] for ids in made.values())
        if repeat >= 0:
            for name in ways:
                rates[name].append(total / seconds[name])
        done = repeat + WARM_UP + 1
        print(f"\r{done}/{arguments.repeats + WARM_UP}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    await drafter.aclose()
    base = rates["model.generate"]
    table = {
        name: {
            "tokens_per_s": statistics.median(values),
            "low": min(values),
            "high": max(values),
            "ratio": statistics.median(v / b for v, b in zip(values, base, strict=True)),
        }
        for name, values in rates.items()
    }
    if arguments.json:
        print(json.dumps({"ways": table, "identical": agree, "tokens": total}))
    else:
        size = sum(p.numel() for p in model.parameters()) / 1e6
        print(
            f"{model.config.model_type}, {size:.2f} M parameters; {len(prompts)} prompts, {total} "
            f"tokens a repeat, {arguments.repeats} repeats, {arguments.threads} thread(s), "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        )
        print(f"{'':24}{'tokens/s':>10}{'lowest':>9}{'highest':>9}{'ratio':>8}")
        for name, row in table.items():
            print(
                f"{name:24}{row['tokens_per_s']:10.0f}{row['low']:9.0f}{row['high']:9.0f}"
                f"{row['ratio']:7.2f}x"
            )
        print("same ids" if agree else "the ids differ: a near-tie in fp32 falls either way")
    return 0


if __name__ == "__main__":
    sys.exit(main())

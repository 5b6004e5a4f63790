"""Many drafts at once beside the same drafts one after another with ``model.generate``.

    python bench/draft_batch.py [--model DIR] [--requests 32] [--tokens 64] [--k 8] [--threads 2]

Both write the same number of greedy tokens for the same prompts. The drafter is used as requests
use it: one session each, in rounds of K, all accepted; its requests are under way together. The two
take turns, so that a busy machine hurts both. Without ``--model`` the bundled draft is used.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

QUESTIONS = (
    "Where is my order? I was told it would be here by Friday.",
    "我的退款什么时候到账？订单已经退回一周了。",
    "How do I change the delivery address after I have paid?",
    "I want to return the shoes from my last order, they are too small.",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model folder; default: the bundled draft")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="torch threads, for both")
    return asyncio.run(compare(parser.parse_args()))


async def compare(a: argparse.Namespace) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    from specroute.context import Committed, Prompt
    from specroute.draft.local import LocalDrafter
    from specroute.reference.bundled import draft_dir

    torch.set_num_threads(a.threads)
    folder = a.model or str(draft_dir())
    drafter = LocalDrafter("bench", folder, device="cpu")
    await drafter.load()
    vocabulary = drafter.vocabulary
    assert vocabulary is not None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [
        vocabulary.render(
            [{"role": "user", "content": f"Order {i}. {QUESTIONS[i % len(QUESTIONS)]}"}]
        )
        for i in range(a.requests)
    ]

    def one_after_another() -> list[tuple[int, ...]]:
        out = []
        for ids in prompts:
            prompt = torch.tensor([ids])
            made = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=a.tokens,
                min_new_tokens=a.tokens,
                do_sample=False,
                pad_token_id=0,
            )
            out.append(tuple(made[0, len(ids) :].tolist()))
        return out

    async def one(ids: tuple[int, ...]) -> tuple[int, ...]:
        session = await drafter.open(Prompt(None, None, ids), vocabulary)
        committed: tuple[int, ...] = ()
        while len(committed) < a.tokens:
            k = min(a.k, a.tokens - len(committed))
            committed += (await session.propose(Committed("", committed), k)).ids or ()
        await session.aclose()
        return committed

    async def together() -> list[tuple[int, ...]]:
        return await asyncio.gather(*map(one, prompts))

    ends, drafter._loaded.vocabulary.eos_ids = drafter._loaded.vocabulary.eos_ids, frozenset()
    model.generation_config.eos_token_id = None
    ratios, alone_s, together_s = [], [], []
    same: Any = None
    for turn in range(a.repeats + 1):
        began = time.perf_counter()
        first = await asyncio.to_thread(one_after_another)
        middle = time.perf_counter()
        steps = drafter._stepper.steps
        second = await together()
        ended = time.perf_counter()
        if not turn:  # Warm-up, and whether it is the same work.
            same = sum(x == y for x, y in zip(first, second, strict=True))
            continue
        alone_s.append(middle - began)
        together_s.append(ended - middle)
        ratios.append((middle - began) / (ended - middle))
        steps = drafter._stepper.steps - steps
    drafter._loaded.vocabulary.eos_ids = ends
    await drafter.aclose()
    total = a.requests * a.tokens
    print(f"{a.requests} requests of {a.tokens} tokens, rounds of {a.k}, {a.threads} torch threads")
    print(f"{'':34}{'tokens/s':>10}{'best':>10}")
    for name, seconds in (("model.generate, one by one", alone_s), ("all together", together_s)):
        print(f"{name:34}{total / statistics.median(seconds):>10.0f}{total / min(seconds):>10.0f}")
    print(
        f"ratio: median {statistics.median(ratios):.1f}, from {min(ratios):.1f} to "
        f"{max(ratios):.1f} in {a.repeats} turns; {total / steps:.1f} tokens a step; "
        f"{same} of {a.requests} answers identical"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

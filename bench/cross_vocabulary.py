"""How much of a draft survives at a target with another vocabulary: TLI beside SLEM.

The target answers each prompt greedily, once; then rounds of K drafted tokens are replayed along
that answer as they would have happened: accept while the drafted token is the target's, commit the
target's own token after that. At T = 1 the target's sampled answers are read token by token:
the expected acceptance is Σ min(p, q') for a drawn TLI token and p(x) for a greedy SLEM token.
Knows models in folders; nothing of servers.

    python bench/cross_vocabulary.py --draft DIR --target DIR
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from specroute.context import Committed, Prompt
from specroute.draft.local import LocalDrafter
from specroute.vocabulary import Vocabulary, load_vocabulary

CHATS = (
    "Where is my order? It was due on Monday.",
    "How do I return a jacket that is too small?",
    "Explain in three sentences how rain forms.",
    "Write a short thank-you note to a colleague.",
    "What should I pack for a week in the mountains?",
    "Give me four tips for sleeping better.",
)
TEXTS = (
    "The history of the city begins in the early Middle Ages, when",
    "Photosynthesis is the process by which plants",
    "To install the package, first make sure that",
    "def read_lines(path):\n    with open(path) as file:\n",
    "Once upon a time, in a small village by the sea, there lived",
    "Dear customer,\n\nthank you for your order. We are sorry to hear that",
)
STRIDE = 3
"""Every so many positions of a sampled answer are looked at."""


class Target:
    """The target's own answers, and its p along one."""

    def __init__(self, folder: str, vocabulary: Vocabulary) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.vocabulary = vocabulary
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, text: str, chat: bool) -> Prompt:
        if chat:
            messages = ({"role": "user", "content": text},)
            return Prompt(messages, None, self.vocabulary.render(messages))
        bos = () if self.vocabulary.bos_id is None else (self.vocabulary.bos_id,)
        return Prompt(None, text, bos + self.vocabulary.encode(text))

    def answer(self, prompt: Prompt, tokens: int, sample: bool) -> tuple[int, ...]:
        import torch

        torch.manual_seed(0)
        ids = torch.tensor([prompt.ids])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=sample,
            temperature=1.0 if sample else None,
            top_p=1.0 if sample else None,
            top_k=0 if sample else None,
            pad_token_id=0,
        )
        return tuple(out[0, ids.shape[1] :].tolist())

    def p(self, prompt: Prompt, answer: tuple[int, ...]) -> Any:
        """One row of probabilities for each token of the answer."""
        import torch

        with torch.inference_mode():
            ids = torch.tensor([(*(prompt.ids or ()), *answer)])
            logits = self.model(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]
        return torch.softmax(logits.double(), -1).numpy()


async def replay(session: Any, vocabulary: Vocabulary, answer: tuple[int, ...], k: int) -> Any:
    """(rounds, drafted, accepted, judged, seconds) of greedy rounds along ``answer``."""
    at = rounds = drafted = accepted = judged = 0
    seconds = 0.0
    while at < len(answer):
        committed = Committed(text_of(vocabulary, answer[:at]), answer[:at])
        proposal = await session.propose(committed, k)
        ids = (proposal.ids or ())[: len(answer) - at]
        hit = 0
        while hit < len(ids) and ids[hit] == answer[at + hit]:
            hit += 1
        rounds += 1
        drafted += len(ids)
        accepted += hit
        judged += hit + (hit < len(ids))
        seconds += proposal.seconds
        at += hit + 1
    return rounds, drafted, accepted, judged, seconds


async def expected(session: Any, vocabulary: Vocabulary, answer: tuple[int, ...], p: Any) -> Any:
    """(positions, sum of expected acceptance) of a single drafted token at T = 1."""
    import numpy as np

    total, count = 0.0, 0
    for at in range(0, len(answer), STRIDE):
        committed = Committed(text_of(vocabulary, answer[:at]), answer[:at])
        proposal = await session.propose(committed, 1, 1.0)
        count += 1
        if not proposal.ids:
            continue
        if proposal.q is None:
            total += p[at][proposal.ids[0]]
        else:
            q = proposal.q[0]
            total += float(np.minimum(p[at][q.crossing.target], q.shares).sum())
    return count, total


def text_of(vocabulary: Vocabulary, ids: tuple[int, ...]) -> str:
    return vocabulary.decode(ids).rstrip("\ufffd")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


async def main() -> None:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", required=True, help="folder of the draft model")
    parser.add_argument("--target", required=True, help="folder of the target model")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    vocabulary = load_vocabulary(args.target)
    target = Target(args.target, vocabulary)
    chat = templated(vocabulary) and templated(load_vocabulary(args.draft))
    prompts = [target.prompt(text, chat) for text in (CHATS if chat else TEXTS)]
    say(f"{len(prompts)} {'chats' if chat else 'texts'}; the target answers")
    greedy = [target.answer(prompt, args.tokens, False) for prompt in prompts]
    say("and again, sampled")
    sampled = [target.answer(prompt, args.tokens, True) for prompt in prompts]
    rows = {}
    for way in ("tli", "slem"):
        drafter = LocalDrafter("draft", args.draft, way=way)
        await drafter.load()
        sums = [0.0] * 5
        hits = [0.0] * 2
        for i, (prompt, plain, drawn) in enumerate(zip(prompts, greedy, sampled, strict=True), 1):
            session = await drafter.open(prompt, vocabulary)
            found = await replay(session, vocabulary, plain, args.k)
            sums = [a + b for a, b in zip(sums, found, strict=True)]
            await session.aclose()
            session = await drafter.open(prompt, vocabulary)
            more = await expected(session, vocabulary, drawn, target.p(prompt, drawn))
            hits = [a + b for a, b in zip(hits, more, strict=True)]
            await session.aclose()
            say(f"{way}: {i} of {len(prompts)}, accepted/drafted {sums[2] / sums[1]:.3f} so far")
        rounds, drafted, accepted, judged, seconds = sums
        rows[way] = {
            "rounds": int(rounds),
            "drafted": int(drafted),
            "accepted": int(accepted),
            "acceptance": accepted / drafted,
            "alpha": accepted / judged,
            "length": 1 + accepted / rounds,
            "ms_a_token": 1000 * seconds / drafted,
            "sampled_alpha": hits[1] / hits[0],
        }
        pair = drafter._loaded.pair(vocabulary)  # type: ignore[union-attr]
        shared = {
            "tokens": len(pair.crossing),
            "of_draft": drafter.vocabulary.size,  # type: ignore[union-attr]
            "of_target": vocabulary.size,
            "mass": pair.mass,
            "cover": pair.cover,
        }
        await drafter.aclose()
    if args.json:
        print(json.dumps({"k": args.k, "shared": shared, "ways": rows}, indent=1))
        return
    print(
        f"\nshared: {shared['tokens']} of the draft's {shared['of_draft']} and the target's "
        f"{shared['of_target']} tokens; {shared['mass']:.2f} of the draft's mass, "
        f"{shared['cover']:.2f} of the target's tokens\n"
    )
    print(f"K = {args.k}  accepted/drafted  alpha  accepted a round  ms a token  alpha at T = 1")
    for way, row in rows.items():
        print(
            f"{way:6} {row['acceptance']:17.3f} {row['alpha']:6.3f} {row['length'] - 1:17.2f} "
            f"{row['ms_a_token']:11.1f} {row['sampled_alpha']:15.3f}"
        )


def templated(vocabulary: Vocabulary) -> bool:
    try:
        return bool(vocabulary.render([{"role": "user", "content": "a"}]))
    except ValueError:
        return False


if __name__ == "__main__":
    asyncio.run(main())

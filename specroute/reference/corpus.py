"""The two kinds of traffic that the bundled models are trained and judged on.

Knows that there are two, where each comes from and which side of the split a prompt is on.
Doesn't know tokenizers, models or training; the text itself is made in `customer_service`
and read in `python_code`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from specroute.reference import customer_service, python_code

Message = dict[str, str]
TRAFFIC = ("customer-service", "python-code")


def held_out(traffic: str, n: int, seed: int = 0) -> list[list[Message]]:
    """`n` prompts that training never saw, as OpenAI chat `messages`, without an answer.

    "customer-service": a system message with the shop's rules and one order, then a question;
    English and Chinese in turn. "python-code": an excerpt of a held-out standard library file,
    to be continued. Prompts are about 150 tokens of the bundled tokenizer. The same arguments
    give the same prompts on every machine.

    Raises ValueError for an unknown `traffic`, or more code prompts than are shipped.
    """
    if traffic == "customer-service":
        found = islice(customer_service.held_out_conversations(seed), n)
        return [messages[:-1] for messages in found]
    if traffic == "python-code":
        prompts = python_code.held_out_prompts()
        if n > len(prompts):
            raise ValueError(f"asked for {n} {traffic!r} prompts, but {len(prompts)} are shipped")
        return random.Random(f"code-held-out-{seed}").sample(prompts, n)
    raise ValueError(f"unknown traffic {traffic!r}: expected one of {', '.join(TRAFFIC)}")


def training_conversations(traffic: str, seed: int = 0) -> Iterator[list[Message]]:
    """Endless conversations with answers to train on; ValueError for an unknown `traffic`.

    None of them shows a held-out file, question wording, or pair of customer and item.
    """
    if traffic == "customer-service":
        return customer_service.conversations(seed)
    if traffic == "python-code":
        return python_code.conversations(seed)
    raise ValueError(f"unknown traffic {traffic!r}: expected one of {', '.join(TRAFFIC)}")


def training_texts(seed: int = 0) -> Iterator[str]:
    """Plain texts for a tokenizer: 3000 conversations' messages, then 1500 chunks of code."""
    counts = dict(zip(TRAFFIC, (3000, 1500), strict=True))
    for traffic in TRAFFIC:
        for messages in islice(training_conversations(traffic, seed), counts[traffic]):
            for message in messages:
                yield message["content"]

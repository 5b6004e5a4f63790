"""The tasks: a file to be repeated with five changes, and prose that repeats nothing.

Knows texts, prompts and the script behind them; the servers that play an API; how one streamed call
is timed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from specroute import AsyncSpecRoute, Report, report
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script

PACE = "ttft=300ms,tpot=22ms"
PRICES = {"input": 2.5, "cached_input": 1.25, "output": 10.0}
"""USD per million tokens, as a large hosted model's."""

CLOSED = (
    "completions",
    "tokenize",
    "detokenize",
    "apply_template",
    "generate",
    "logprobs",
    "prompt_logprobs",
    "echo",
    "logit_bias",
    "token_id_names",
)
"""What a closed chat API doesn't have."""

FILE = '''\
"""Stock of a small shop: what is there, what it costs, who ordered it."""

import csv
from dataclasses import dataclass


@dataclass
class Article:
    number: int
    title: str
    price_cents: int
    on_hand: int = 0


def load(path):
    """Read the shelf from a table with one article in each row."""
    shelf = {}
    with open(path, newline="") as source:
        for row in csv.DictReader(source):
            article = Article(
                int(row["number"]), row["title"], int(row["price"]), int(row["stock"])
            )
            shelf[article.number] = article
    return shelf


def reserve(shelf, number, amount):
    """Take some pieces of an article away; complain where there are too few."""
    article = shelf.get(number)
    if article is None:
        raise KeyError(f"no such article: {number}")
    if article.on_hand < amount:
        raise ValueError(f"only {article.on_hand} left of {article.title}")
    article.on_hand -= amount
    return article.price_cents * amount


def restock(shelf, delivery):
    """Put a delivery on the shelf and tell how many pieces came."""
    total = 0
    for number, amount in delivery:
        shelf[number].on_hand += amount
        total += amount
    return total


def invoice(customer, lines, discount=0):
    """Write a bill as text, with the sum in the last line."""
    parts = ["Bill for " + customer]
    due = 0
    for article, amount in lines:
        cost = article.price_cents * amount
        due += cost
        parts.append(f"{amount} x {article.title}: {cost / 100:.2f} EUR")
    due -= due * discount // 100
    parts.append(f"Total: {due / 100:.2f} EUR")
    return parts
'''
CHANGES = (
    ("Stock of a small shop", "Inventory of a small shop"),
    ("one article in each row", "one item in each line"),
    ('raise KeyError(f"no such article: {number}")', "raise LookupError(number)"),
    ("tell how many pieces came", "count the pieces"),
    ("    return parts", '    return "; ".join(parts)'),
)
ASK = "Make the five changes we spoke about and give me the whole file.\n\n"

WORDS = """
harbour lantern orchard velvet copper thunder meadow silver quiet window river candle stone morning
letter garden winter shadow music bridge forest engine mirror basket corner island summer kettle
pepper saddle timber violet walnut yonder anchor button carpet dancer ember fabric goblet hollow
ivory jacket kernel ladder magnet needle oyster parcel quartz ribbon
"""


def edited() -> str:
    """The file with the five changes."""
    text = FILE
    for before, after in CHANGES:
        assert before in text
        text = text.replace(before, after)
    return text


def prose(words: int = 300) -> str:
    """Words in an order that repeats nothing of the prompt and hardly itself."""
    rng, known = random.Random(7), WORDS.split()
    return " ".join(rng.choice(known) for _ in range(words)) + "."


def edit_script() -> dict[str, Any]:
    return {"name": "closed", "answers": [{"text": edited()}]}


def prose_script() -> dict[str, Any]:
    return {"name": "closed", "answers": [{"text": prose()}]}


def per_thousand(dollars: float) -> str:
    """Dollars of a thousand such calls."""
    return f"{1000 * dollars:.2f}"


def tokens(script: dict[str, Any], text: str) -> int:
    return len(Script(script).encode(text, False))


def closed_server(script: dict[str, Any], **options: Any) -> ReferenceServer:
    """A chat API that continues a prefill and shows text alone."""
    options.setdefault("pace", PACE)
    return ReferenceServer(script, disable=list(CLOSED), **options)


def config(server: ReferenceServer, policy: Any, **capabilities: Any) -> dict[str, Any]:
    """A client of such a server with the n-gram drafter."""
    closed = {
        "completions": False,
        "score": [],
        "chat_max_logprobs": 0,
        "template": None,
        "id_prompts": False,
        "token_ids_param": None,
        "logit_bias": False,
    }
    stated = {k: v for k, v in {**closed, **capabilities}.items() if v is not None}
    return {
        "version": 1,
        "providers": {
            "api": {
                "profile": "generic",
                "base_url": server.base_url,
                "capabilities": {"stream_usage": True, **stated},
                "prices": PRICES,
                "probe": False,
            }
        },
        "models": {"m": {"targets": ["api:closed"], "drafts": ["ngram"], "policy": policy}},
    }


@dataclass(frozen=True)
class Timed:
    text: str
    seconds: float
    ttft_s: float
    report: Report


async def ask(client: AsyncSpecRoute, prompt: str, **body: Any) -> Timed:
    """One streamed chat at T = 0, timed from the call to the last text."""
    body.setdefault("temperature", 0)
    started = time.perf_counter()
    first = last = started
    text = ""
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": prompt}], stream=True, **body
    )
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                last = time.perf_counter()
                first = last if not text else first
                text += choice.delta.content
    return Timed(text, last - started, first - started, report(stream))

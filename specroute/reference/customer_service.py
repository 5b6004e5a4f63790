"""Generated customer-service conversations, in English and Chinese.

Knows the two phrase books in `phrases/` and how an order, a question and its answer are put
together from them. Doesn't know tokenizers, models or how the conversations are used.

The wording of an answer follows from what stands in the prompt (shop, tone, status, question)
except for one choice in `1 / NOISE`, so that a small model can learn it and sampling still
has something to choose from. Held out are pairs of customer and item (one in ten, by a hash)
and, for every intent and every side remark, question wordings that training never shows.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from zlib import crc32

Message = dict[str, str]
LANGUAGES = ("en", "zh")
NOISE = 10  # one choice of wording in this many is free, the others follow from the prompt


@cache
def phrase_book(language: str) -> dict[str, Any]:
    """The parsed phrase book of `language`, "en" or "zh"."""
    path = files("specroute.reference") / "phrases" / f"{language}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def is_held_out(name: str, item: str) -> bool:
    """Whether orders of `item` by customer `name` are kept from training (one pair in ten)."""
    return crc32(f"{name}|{item}".encode()) % 10 == 0


def conversations(seed: int, *, turns: Sequence[int] = (1, 2, 3)) -> Iterator[list[Message]]:
    """Endless training conversations: a system message, then 1 to 3 questions with answers.

    The same `seed` gives the same conversations. `turns` are the numbers of questions drawn from.
    """
    rng = random.Random(f"service-train-{seed}")
    while True:
        yield _conversation(rng, rng.choice(LANGUAGES), rng.choice(turns), held_out=False)


def held_out_conversations(seed: int) -> Iterator[list[Message]]:
    """Endless held-out conversations of one question, English and Chinese in turn.

    Customer and item never meet in training; every second question is in a held-out wording.
    The last message is the answer that the generator would give.
    """
    rng = random.Random(f"service-held-out-{seed}")
    while True:
        for language in LANGUAGES:
            yield _conversation(rng, language, 1, held_out=True)


def _conversation(
    rng: random.Random, language: str, turns: int, *, held_out: bool
) -> list[Message]:
    book = phrase_book(language)
    intents = [rng.randrange(len(book["intents"]))]
    status = rng.choice(list(book["intents"][intents[0]]["answers"]))
    later = [
        number
        for number, intent in enumerate(book["intents"])
        if status in intent["answers"] and number not in intents
    ]
    intents += rng.sample(later, min(turns - 1, len(later)))

    shop = rng.randrange(len(book["shops"]))
    tone = book["tones"][rng.choice(list(book["tones"]))]
    fields = _order(rng, book, held_out=held_out)
    fields |= {
        "shop": book["shops"][shop],
        "tone": tone["line"],
        "status": book["statuses"][status],
    }
    messages = [{"role": "system", "content": book["system"].format(**fields)}]
    for turn, number in enumerate(intents):
        intent = book["intents"][number]
        new_wording = held_out and rng.random() < 0.5
        remark = rng.choice(book["contexts"]) if turn == 0 else book["contexts"][-1]
        question = [
            rng.choice(intent["held_out"] if new_wording else intent["questions"]),
            remark["held_out" if new_wording else "say"],
        ]
        if rng.random() < 0.3:
            question.reverse()

        def choose(options: list[str], salt: int) -> str:
            """The option that this shop uses, or now and then another one."""
            free = rng.randrange(NOISE) == 0
            return rng.choice(options) if free else options[salt % len(options)]

        answer = [choose(tone["greetings"], shop)] if turn == 0 else []
        if remark["reply"]:
            answer.append(choose(remark["reply"], shop))
        answer.append(choose(intent["answers"][status], shop))
        first = shop + number
        brief = tone is book["tones"]["brief"]
        for step in range(book["steps"]["brief" if brief else "other"]):
            answer.append(choose(intent["steps"], first + step))
        if turn == 0 and not brief:
            answer.append(choose(book["recaps"], shop + 1))
        answer.append(choose(tone["closings"], number))
        # A free choice may repeat a sentence; say each once.
        answer = list(dict.fromkeys(answer))
        space = " " if language == "en" else ""
        messages += [
            {"role": "user", "content": space.join(filter(None, question)).format(**fields)},
            {"role": "assistant", "content": space.join(answer).format(**fields)},
        ]
    return messages


def _order(rng: random.Random, book: dict[str, Any], *, held_out: bool) -> dict[str, str]:
    """One order's fields, its customer and item from the wanted side of the split."""
    name, item = rng.choice(book["names"]), rng.choice(book["items"])
    while is_held_out(name, item) is not held_out:
        name, item = rng.choice(book["names"]), rng.choice(book["items"])
    month, placed = rng.choice(book["months"]), rng.randint(1, 20)
    percent = rng.choice((10, 15, 20, 25))

    def date(day: int) -> str:
        return str(book["date"].format(day=day, month=month))

    return {
        "name": name,
        "item": item,
        "option": rng.choice(book["options"]),
        "order": f"{rng.choice('ABCDEFGHKLMNPRSTUVWX')}{rng.randint(10, 99)}",
        "price": str(rng.randint(12, 99)),
        "carrier": rng.choice(book["carriers"]),
        "method": rng.choice(book["methods"]),
        "fee": rng.choice(book["fees"]),
        "window": str(rng.choice((14, 30, 60))),
        "working": str(rng.choice((3, 5, 7, 10))),
        "free": str(rng.choice((30, 40, 50, 80))),
        "percent": str(percent),
        "code": f"{rng.choice(book['codes'])}{percent}",
        "placed": date(placed),
        "due": date(placed + rng.randint(2, 7)),
        "ends": date(28),
    }

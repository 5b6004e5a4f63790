"""Requests that are equal in length and different in text, with the answers that they will get.

Customer-service conversations of the bundled corpus, so that the bundled draft guesses some of the
answers right. Knows the bundled tokenizer; knows no server and no client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from specroute.reference import customer_service
from specroute.reference.bundled import draft_dir
from specroute.vocabulary import Vocabulary, load_vocabulary

PROMPT = 160
"""Tokens of every prompt, the template's included."""
FILLER = " please"
SEED = 11


@dataclass(frozen=True, slots=True)
class Question:
    messages: list[dict[str, str]]
    prompt: tuple[int, ...]
    """Its ids, :data:`PROMPT` of them."""
    answer: tuple[int, ...]
    """The ids that the target says."""
    text: str
    """The same as text."""


@lru_cache
def vocabulary() -> Vocabulary:
    """The bundled draft's, which is the target's as well."""
    return load_vocabulary(draft_dir())


def questions(count: int, answer: int) -> list[Question]:
    """``count`` questions with answers of ``answer`` tokens; the same ones in every process."""
    own, found = vocabulary(), dict[tuple[int, ...], Question]()
    for conversation in customer_service.held_out_conversations(SEED):
        if len(found) == count:
            return list(found.values())
        said = own.encode(conversation[-1]["content"])[:answer]
        messages = _filled(own, conversation[:-1])
        text = own.decode(said)
        # Cut inside a character, it would not be what a stream shows.
        if len(said) < answer or messages is None or "\ufffd" in text:
            continue
        prompt = own.render(messages)
        found[prompt] = Question(messages, prompt, said, text)
    raise AssertionError("the conversations are endless")


def _filled(own: Vocabulary, messages: list[dict[str, str]]) -> list[dict[str, str]] | None:
    """The messages with a politer question, so that the prompt is as long as all others."""
    short = PROMPT - len(own.render(messages))
    if short < 0:
        return None
    asked = {**messages[-1], "content": messages[-1]["content"] + FILLER * short}
    filled = [*messages[:-1], asked]
    return filled if len(own.render(filled)) == PROMPT else None

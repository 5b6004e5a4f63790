"""The passage that a prompt is about, in the forms in which people put it there."""

from __future__ import annotations

from typing import Any

import pytest

from specroute.context import Committed, Prompt
from specroute.draft.ngram import NgramDrafter, split_pieces
from specroute.draft.passage import LEAST, passage

TEXT = "".join(f"line {i} of the file says {i * i}\n" for i in range(12))
SHORT = "line of a file\n"


def prompt(*texts: Any) -> Prompt:
    return Prompt(tuple({"role": "user", "content": text} for text in texts), None)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((f"Fix it:\n```python\n{TEXT}```\nThanks.",), TEXT),
        ((f"Fix it:\n<file>\n{TEXT}</file>\nThanks.",), TEXT),
        ((f"```\n{SHORT}```\nas in\n```\n{TEXT}```",), TEXT),
        ((f"Fix it.\n\n{TEXT}",), TEXT),
        (("Fix what follows.", TEXT), TEXT),
        (([{"type": "text", "text": f"Fix it.\n\n{TEXT}"}],), TEXT),
        ((TEXT,), ""),
        ((f"Fix it.\n\n{SHORT}",), ""),
        (("Write a poem.",), ""),
    ],
    ids=["fenced", "tagged", "longest", "after a blank line", "own message", "parts", "question",
         "short", "none"],
)  # fmt: skip
def test_the_passage_of_a_prompt(texts: Any, expected: str) -> None:
    """What is shorter than a few lines is part of the question."""
    assert len(SHORT) < LEAST < len(TEXT)
    assert passage(prompt(*texts)) == expected


def test_a_completions_prompt_has_one_too() -> None:
    """After its first blank line."""
    assert passage(Prompt(None, f"Fix it.\n\n{TEXT}")) == TEXT
    assert passage(Prompt(None, None, (1, 2, 3))) == ""


async def test_prompt_lookup_begins_with_the_passage() -> None:
    """Before the answer has begun; then what followed the answer's own last words."""
    session = await NgramDrafter().open(prompt(f"Fix it.\n\n{TEXT}"), None)
    assert (await session.propose(Committed(""), 10_000)).text == TEXT
    assert (await session.propose(Committed(""), 7)).text == "".join(split_pieces(TEXT)[:7])
    assert (await session.propose(Committed("line 3 of the"), 2)).text == " file says"

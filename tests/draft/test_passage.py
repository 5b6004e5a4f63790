"""The passage that a prompt is about, in the forms in which people put it there."""

from __future__ import annotations

from typing import Any

import pytest

from specroute.context import Committed, Prompt
from specroute.draft.ngram import NgramDrafter, NgramIndex, split_pieces
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


async def test_a_draft_that_is_gone_on_from_keeps_its_place() -> None:
    """Although the same words stand elsewhere, later; taken back, they are as if never said."""
    text = "one two three four five. " * 2 + "zero one two three six seven eight nine ten"
    session = await NgramDrafter().open(prompt(text), None)
    draft = (await session.propose(Committed("five. one two"), 2)).text
    assert draft == " three four"
    assert (await session.propose(Committed("five. one two" + draft), 2)).text == " five."
    assert (await session.propose(Committed("five. zero one two"), 2)).text == " three six"


def test_what_an_index_takes_back_is_as_if_never_said() -> None:
    """But for what was there at the mark."""
    index: NgramIndex[int] = NgramIndex(3, 2)
    index.extend([1, 2, 3, 1, 2])
    index.mark()
    index.extend([4, 1, 2])
    assert list(index.find()) == [5]
    index.truncate(2)
    assert index.items == [1, 2, 3, 1, 2]
    assert list(index.find()) == [2]

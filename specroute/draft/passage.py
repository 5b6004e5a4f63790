"""The passage of a prompt that an answer is likely to repeat: the file to edit, the text to quote.

Pure; knows how people put a text into a prompt: fenced, between tags, or after an instruction and a
blank line. Knows no answer: before there is one, this is the only thing to look up.
"""

from __future__ import annotations

import re

from specroute.context import Prompt

LEAST = 160
"""Characters below which a text is part of the question, not something to work on."""

_FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TAGGED = re.compile(r"<([A-Za-z][\w-]*)>\n?(.*?)</\1>", re.DOTALL)


def passage(prompt: Prompt) -> str:
    """The longest fenced or tagged text of the last user message, else what stands there after the
    first blank line, else the whole message where another one holds the instruction; ``""`` where
    none of them has at least ``LEAST`` characters."""
    if prompt.messages is None:
        return _within(prompt.text or "", alone=True)
    said = [
        _text(message.get("content"))
        for message in prompt.messages
        if message.get("role") in ("user", "system", "developer")
    ]
    return _within(said[-1], alone=len(said) == 1) if said else ""


def _within(text: str, *, alone: bool) -> str:
    marked = [match.group(1) for match in _FENCED.finditer(text)]
    marked += [match.group(2) for match in _TAGGED.finditer(text)]
    best = max(marked, key=len, default="")
    if len(best) >= LEAST:
        return best
    after = text.partition("\n\n")[2] if alone else text
    return after if len(after) >= LEAST else ""


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""

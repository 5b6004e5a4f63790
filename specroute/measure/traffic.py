"""Traffic classes: requests that may well be answered alike, told by what is cheap to see.

A class is written from coarse to fine, ``chat#a1b2c3/prose/1k``: the endpoint and the beginning of
the system prompt, then whether the prompt is code or prose, then its length. Knows no figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from specroute.request import CHAT, TextRequest

SYSTEM_HEAD = 40
"""Characters of the system prompt that count: what follows is often the customer's own data."""
LOOKED_AT = 4000
"""Characters of the last message in which code is looked for."""
CODE_SHARE = 0.025
"""Of characters that are brackets, semicolons, equals signs or indentation."""
LENGTHS = ((256, "256"), (1024, "1k"), (4096, "4k"), (16384, "16k"), (65536, "64k"))
"""Prompt lengths in tokens up to which a class reaches, and how it is written."""
_SYSTEM = ("system", "developer")
_CODE = ("{", "}", ";", "=", "(", ")", "[", "]", "\n    ", "\t")


def traffic_class(request: TextRequest) -> str:
    """The class of one request. A few microseconds; the text itself is not kept."""
    endpoint = "chat" if request.path == CHAT else "completions"
    last, size = _texts(request)
    kind = "code" if looks_like_code(last) else "prose"
    return f"{endpoint}#{_system(request)}/{kind}/{_length(size)}"


def lineage(traffic: str) -> tuple[str, ...]:
    """The class and the coarser ones it belongs to, to the one of all requests (``""``).

    >>> lineage("chat#a1b2c3/prose/1k")
    ('chat#a1b2c3/prose/1k', 'chat#a1b2c3', '')
    """
    coarser = traffic.partition("/")[0]
    return tuple(dict.fromkeys((traffic, coarser, "")))


def looks_like_code(text: str) -> bool:
    """A fenced block, or more brackets, semicolons and indentation than prose has."""
    text = text[:LOOKED_AT]
    if "```" in text:
        return True
    signs = sum(map(text.count, _CODE))
    return len(text) >= 40 and signs > CODE_SHARE * len(text) and signs >= 8


def _texts(request: TextRequest) -> tuple[str, int]:
    """(the last text, about how many tokens all of them are)."""
    if isinstance(request.prompt, tuple):
        return "", len(request.prompt)
    if request.messages is None:
        text = request.prompt or ""
        return text[-LOOKED_AT:], len(text) // 4
    last, size = "", 0
    for text in _contents(request):
        last = text or last
        size += len(text)
    return last[-LOOKED_AT:], size // 4


def _contents(request: TextRequest) -> Iterator[str]:
    for message in request.messages or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else None
                if isinstance(text, str):
                    yield text


def _system(request: TextRequest) -> str:
    heads = [
        str(message.get("content"))[:SYSTEM_HEAD]
        for message in request.messages or ()
        if isinstance(message, dict) and message.get("role") in _SYSTEM
    ]
    if not heads:
        return "none"
    return hashlib.blake2b("\n".join(heads).encode(), digest_size=6).hexdigest()


def _length(tokens: int) -> str:
    return next((name for most, name in LENGTHS if tokens <= most), "more")

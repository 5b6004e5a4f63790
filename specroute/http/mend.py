"""Chunks that openai's types do not foresee, made into what they mean.

Pure. ``choices: null`` and a ``delta`` that is null or missing become empty, tool calls without an
index get theirs; anything else stays as it is. Which chunks to look at, the marks in their bytes
tell.
"""

from __future__ import annotations

import re
from typing import Any

_ODD = re.compile(rb'"(?:choices|delta)"\s*:\s*null|"tool_calls"\s*:\s*\[\s*\{')


def looks_odd(payload: bytes) -> bool:
    """Whether :meth:`Mender.mend` may have something to do."""
    if _ODD.search(payload) is not None:
        return True
    return b'"choices"' in payload and b'"delta"' not in payload and b'"text"' not in payload


class Mender:
    """One stream's: tool calls are numbered over all of its chunks."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[Any, int] = {}
        """Choice → the index of its last tool call."""

    def mend(self, data: dict[str, Any]) -> bool:
        """Mend one chunk in place; whether anything had to be."""
        if data.get("choices", ()) is None:
            data["choices"] = []
            return True
        mended = False
        choices = data.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if choice.get("delta") is None and "text" not in choice:
                message = choice.get("message")
                choice["delta"] = message if isinstance(message, dict) else {}
                mended = True
            delta = choice.get("delta")
            calls = delta.get("tool_calls") if isinstance(delta, dict) else None
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    mended |= self._number(choice.get("index"), call)
        return mended

    def _number(self, choice: Any, call: dict[str, Any]) -> bool:
        index = call.get("index")
        if isinstance(index, int) and not isinstance(index, bool):
            self._calls[choice] = index
            return False
        function = call.get("function")
        named = isinstance(function, dict) and function.get("name")
        last = self._calls.get(choice, -1)
        # A call that has a name or an id of its own begins; anything else goes on.
        call["index"] = self._calls[choice] = last + 1 if named or call.get("id") else max(last, 0)
        return True

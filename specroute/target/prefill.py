"""Prefill: a chat request whose last message is the answer's own beginning, to be continued.

Each dialect is one small change of the request body, named in the profiles. Knows no streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Body = dict[str, Any]


def _continue_final_message(body: Body, text: str) -> Body:
    """vLLM, SGLang: ``continue_final_message: true`` and ``add_generation_prompt: false``."""
    return {
        **_with_assistant(body, text),
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def _prefix(body: Body, text: str) -> Body:
    """DeepSeek, Mistral: ``prefix: true`` on the last message."""
    return _with_assistant(body, text, prefix=True)


def _partial(body: Body, text: str) -> Body:
    """DashScope, Moonshot: ``partial: true`` on the last message."""
    return _with_assistant(body, text, partial=True)


def _trailing_assistant(body: Body, text: str) -> Body:
    """llama.cpp, Groq: a trailing assistant message is continued without being asked."""
    return _with_assistant(body, text)


def _body_prefix(body: Body, text: str) -> Body:
    """SiliconFlow: a ``prefix`` field beside ``messages``."""
    return {**body, "prefix": text}


def _with_assistant(body: Body, text: str, **flags: Any) -> Body:
    message = {"role": "assistant", "content": text, **flags}
    return {**body, "messages": [*body["messages"], message]}


DIALECTS: Mapping[str, Callable[[Body, str], Body]] = {
    "continue_final_message": _continue_final_message,
    "prefix": _prefix,
    "partial": _partial,
    "trailing_assistant": _trailing_assistant,
    "body_prefix": _body_prefix,
}


def continued(body: Mapping[str, Any], text: str, dialect: str) -> Body:
    """The chat ``body`` asked to go on after ``text``; empty text leaves it as it is."""
    return DIALECTS[dialect](dict(body), text) if text else dict(body)


class PrefixEcho:
    """Strips the prefilled text from a reply that repeats it, and only then.

    Some servers repeat the prefix, some do so in one of their two modes: the first characters tell.
    Feed every piece through :meth:`feed`; :meth:`flush` gives what was held for comparison.
    """

    def __init__(self, prefix: str) -> None:
        self._left = prefix
        self._held = ""

    def feed(self, text: str) -> str:
        """The new text in ``text``; ``""`` while it still matches the prefix."""
        if not self._left:
            return text
        self._held += text
        if len(self._held) < len(self._left):
            return "" if self._left.startswith(self._held) else self.flush()
        if self._held.startswith(self._left):
            self._held = self._held[len(self._left) :]
        return self.flush()

    def flush(self) -> str:
        held, self._held, self._left = self._held, "", ""
        return held

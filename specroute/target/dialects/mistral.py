"""``mistral``: ``prompt_logprobs`` and ``top_prompt_logprobs`` on Mistral's chat.

Its SDK (3.7) has both fields in the request, and ``choices[].prompt_logprobs.content`` in the
answer: ``{token, token_id, bytes, logprob, top_logprobs}`` for the prompt's tokens. Which of them
are left out at the front is not documented; only the end, where the draft is, is read. The draft
goes out as an assistant message with ``prefix: true``. Whether the live API answers these fields is
not known, so no profile names this dialect: it is for those who have seen it do so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.request import CHAT
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Request, Shows
from specroute.target.dialects.prompt_logprobs import chat_body, view_of_chat
from specroute.target.view import BadEvidence, View


class Mistral:
    """Chat alone: the server renders the prompt."""

    name = "mistral"
    needs_ids = False
    shows = Shows(keeps_cache=None)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Messages."""
        return ("chat",) if capabilities.chat and capabilities.prefill else ()

    def request(self, ask: Ask) -> Request:
        """``seed`` is called ``random_seed`` where the profile says so."""
        if ask.form != "chat":
            raise BadEvidence("this server scores chats alone")
        body = chat_body(ask)
        if "seed" in body:
            body[ask.capabilities.seed_param] = body.pop("seed")
        if ask.draft:
            body |= {"prompt_logprobs": True, "top_prompt_logprobs": ask.logprobs}
        return Request(CHAT, body)

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """The prompt's tokens have to end with the committed text and the draft."""
        choice = entries.choice_of(data)
        found = entries.read(choice.get("prompt_logprobs")) if ask.draft else []
        return view_of_chat(data, choice, found, ask, seconds)

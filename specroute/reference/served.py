"""What one server serves: a backend under some names, and what it refuses to be asked of it.

Knows no endpoint and no ASGI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.reference.backend import Backend, InvalidPrompt
from specroute.reference.errors import Refusal, invalid
from specroute.reference.options import Options
from specroute.reference.request import Chat, read_messages


class Served:
    """A backend, with the options that it is served with."""

    def __init__(self, backend: Backend, options: Options) -> None:
        self.backend, self.options = backend, options
        self.names = options.names or (backend.name,)

    def check_model(self, model: Any) -> None:
        """A 404 for a name that isn't its own."""
        if model not in self.names and not (self.options.any_model and isinstance(model, str)):
            raise Refusal(
                404,
                f"The model `{model}` does not exist; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    def check_ids(self, ids: list[Any], where: str) -> None:
        """A 400 for what is no token id."""
        size = self.backend.size
        for i in ids:
            if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < size:
                raise invalid(where, i, f"token ids from 0 to {size - 1}")

    def chat_prompt(self, body: Mapping[str, Any]) -> str:
        """The rendered messages of a request."""
        return self.render(read_messages(body, self.options))

    def render(self, chat: Chat) -> str:
        """The text of a chat's prompt; a 400 where it makes none."""
        try:
            return self.backend.render(
                chat.messages, generate=chat.opening, prefill=chat.prefill, tools=chat.tools
            )
        except InvalidPrompt as error:
            raise Refusal(400, f"messages: {error}", param="messages") from error

"""``together``: echo as Together answers it, in a list ``prompt`` beside ``choices``.

``prompt[0].logprobs`` has ``tokens``, ``token_logprobs`` and ``token_ids``, no ``text_offset``.
Alternatives are not promised for the prompt: the SDK (3.1) types them as one dictionary, answers
have been seen with one per token. Where they come they count; where not, the drafted tokens' own
log-probabilities are all there is. Prompts go out as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Request, Shows
from specroute.target.dialects.echo import completion_body
from specroute.target.view import BadEvidence, Position, View, checked_logprob
from specroute.types import Usage


class Together:
    """The profile calls it ``echo`` with ``echo_shape = "prompt"``."""

    name = "together"
    needs_ids = False
    shows = Shows(argmax=False, top_n=False, keeps_cache=None)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Text."""
        return ("text",) if capabilities.completions else ()

    def request(self, ask: Ask) -> Request:
        """As ``echo``."""
        body = completion_body(ask)
        if ask.draft:
            body["echo"] = True
        return Request(COMPLETIONS, body)

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """The prompt's strings have to join to the text that was sent."""
        if ask.by_ids:
            raise BadEvidence("prompts go to this server as text")
        choice = entries.choice_of(data)
        found = _prompt(data.get("prompt"), ask.sent_text) if ask.draft else []
        start = 0
        if ask.draft:
            start = entries.border(found, ask.draft_text, ask.text or "", whole=True)
        finish = entries.finish_of(choice)
        said = choice.get("text")
        said = said.removeprefix(ask.sent_text) if isinstance(said, str) and ask.draft else said
        made = entries.generated(entries.read(choice.get("logprobs")), ask.max_tokens, by_ids=False)
        made, finish = entries.borne_out(made, said if isinstance(said, str) else "", finish)
        return View(
            tuple(
                _position(entry, ask.logprobs, f"prompt token {i}")
                for i, entry in enumerate(found[start:], start)
            ),
            made,
            finish,
            Usage.from_wire(data.get("usage")),
            seconds,
            start,
        )


def _prompt(shown: Any, sent: str) -> list[entries.Entry]:
    if not (isinstance(shown, list) and len(shown) == 1 and isinstance(shown[0], Mapping)):
        raise BadEvidence("the answer does not show the one prompt that was sent")
    if shown[0].get("text") not in (None, sent):
        raise BadEvidence("the prompt shown is not the one that was sent")
    return entries.read(shown[0].get("logprobs"))


def _position(entry: entries.Entry, n: int, where: str) -> Position:
    if entry.top is not None:
        return entries.position(entry, n, by_ids=False, where=where)
    return Position(entry.key(False, where), checked_logprob(entry.logprob, where), ())

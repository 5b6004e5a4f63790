"""``echo_last``: Fireworks' echo of the last tokens of the prompt alone.

``logprobs: true`` with ``top_logprobs`` gives entries with ids; an integer would give the legacy
lists, whose alternatives are keyed by text. Fireworks' SDK (1.2) reads ``echo_last`` entries and
then the generated ones, and only in an echo of the *whole* prompt the first token's unconditional
row. Knows request and answer; not what an account's deployment really returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Request, Shows
from specroute.target.dialects.echo import completion_body
from specroute.target.view import BadEvidence, View
from specroute.types import Usage


class EchoLast:
    """By ids exactly the draft comes back; by text, enough tokens to hold it."""

    name = "echo_last"
    needs_ids = False
    shows = Shows(keeps_cache=None)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids where they are taken (answers always have them)."""
        if not capabilities.completions:
            return ()
        return ("ids", "text") if capabilities.id_prompts else ("text",)

    def request(self, ask: Ask) -> Request:
        """A text draft has at most as many tokens as bytes."""
        body = completion_body(ask)
        body |= {"logprobs": True, "top_logprobs": ask.logprobs}
        if ask.draft:
            size = len(ask.draft) if ask.by_ids else len(ask.draft_text.encode())
            body["echo_last"] = size
        return Request(COMPLETIONS, body)

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """The echoed entries have to be the draft's ids, or to end with its text."""
        choice = entries.choice_of(data)
        found = entries.read(choice.get("logprobs"))
        finish, usage = entries.finish_of(choice), Usage.from_wire(data.get("usage"))
        start, size = 0, 0
        said = choice.get("text")
        if ask.by_ids:
            size = len(ask.draft)
            _check(found, ask.draft_ids)
        elif ask.draft:
            size = _echoed(found, ask.max_tokens, usage)
            echoed = found[:size]
            start = entries.border(echoed, ask.draft_text, _known(echoed, ask), whole=False)
        bonus = entries.generated(found[size:], ask.max_tokens, by_ids=ask.by_ids)
        if not ask.by_ids:
            # The first echoed token may be the end of a split character.
            joined = b"".join(entry.said for entry in found[:size]).decode("utf-8", "replace")
            joined, said = joined.lstrip("\ufffd"), str(said).lstrip("\ufffd")
            if not said.startswith(joined):
                raise BadEvidence("the answer's text does not begin with what was echoed")
            bonus, finish = entries.borne_out(bonus, said[len(joined) :], finish)
        before = (usage.prompt_tokens or 0) - (size - start)
        return View(
            tuple(
                entries.position(entry, ask.logprobs, by_ids=ask.by_ids, where=f"echoed token {i}")
                for i, entry in enumerate(found[start:size])
            ),
            bonus,
            finish,
            usage,
            seconds,
            len(ask.ids or ()) if ask.by_ids else max(before, 0),
        )


def _check(found: list[entries.Entry], draft: tuple[int, ...]) -> None:
    if len(found) < len(draft):
        raise BadEvidence(f"{len(found)} entries for {len(draft)} drafted tokens")
    for i, (entry, token) in enumerate(zip(found, draft, strict=False)):
        if entry.id != token:
            raise BadEvidence(f"echoed token {i} is {entry.id}, but the token drafted is {token}")


def _echoed(found: list[entries.Entry], most: int, usage: Usage) -> int:
    """How many entries are the prompt's: by the server's count of what it generated."""
    count = usage.completion_tokens
    if count is None or count > most or count > len(found):
        raise BadEvidence(f"{len(found)} entries came, of which {count} were generated")
    return len(found) - count


def _known(echoed: list[entries.Entry], ask: Ask) -> str:
    """As much of the text before the draft as the echoed tokens hold."""
    size = max(sum(len(entry.said) for entry in echoed) - len(ask.draft_text.encode()), 0)
    return (ask.text or "").encode()[-size:].decode("utf-8", "ignore") if size else ""

"""``echo``: ``/completions`` with ``echo: true`` and ``logprobs: N``.

One request carries prompt + committed + draft and returns a log-probability for each of its tokens,
then the generated ones; ``max_tokens`` is at least 1, since 0 means different things to different
servers. Documented for OpenAI's legacy completions API and implemented by vLLM, SGLang and others.
Knows request and answer; whether the server is to be believed is calibration's matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Joins, Request, Shows
from specroute.target.view import BadEvidence, View
from specroute.types import Usage


class Echo:
    """Without a draft nothing is echoed, which leaves the server its prefix cache."""

    name = "echo"
    needs_ids = False
    shows = Shows()

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids where answers name them, else text."""
        return completion_forms(capabilities)

    def request(self, ask: Ask) -> Request:
        """``echo`` beside the common fields."""
        body = completion_body(ask)
        if ask.draft:
            body["echo"] = True
        return Request(COMPLETIONS, body, joins=Joins())

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """Every entry has to name the id that was sent, or the strings have to join to the text."""
        choice = entries.choice_of(data)
        found = entries.read(choice.get("logprobs"))
        finish = entries.finish_of(choice)
        said = choice.get("text")
        size = 0
        if ask.draft and ask.by_ids:
            size = check_ids(found, ask.sent_ids)
            start = size - len(ask.draft)
        elif ask.draft:
            if not (isinstance(said, str) and said.startswith(ask.sent_text)):
                raise BadEvidence("the answer's text does not begin with the prompt that was sent")
            size = _prompt_size(found, ask.sent_text)
            start = entries.border(found[:size], ask.draft_text, ask.text or "", whole=True)
            said = said[len(ask.sent_text) :]
        else:
            start = 0
        bonus = entries.generated(found[size:], ask.max_tokens, by_ids=ask.by_ids)
        if not ask.by_ids:
            said = said if isinstance(said, str) else ""
            bonus, finish = entries.borne_out(bonus, said, finish)
        return View(
            tuple(
                entries.position(entry, ask.logprobs, by_ids=ask.by_ids, where=f"entry {i}")
                for i, entry in enumerate(found[start:size], start)
            ),
            bonus,
            finish,
            Usage.from_wire(data.get("usage")),
            seconds,
            start,
        )


def completion_forms(capabilities: Capabilities) -> tuple[Form, ...]:
    """The forms that ``/completions`` takes and answers in kind."""
    if not capabilities.completions:
        return ()
    if capabilities.id_prompts and capabilities.token_ids_param:
        return ("ids", "text")
    return ("text",)


def completion_body(ask: Ask) -> dict[str, Any]:
    """The fields that every scoring request to ``/completions`` has."""
    body: dict[str, Any] = {
        "model": ask.model,
        "prompt": list(ask.sent_ids) if ask.by_ids else ask.sent_text,
        "logprobs": ask.logprobs,
        "max_tokens": ask.max_tokens,
        **ask.sampling,
    }
    caps = ask.capabilities
    if ask.by_ids and caps.token_ids_param:
        body[caps.token_ids_param] = True
    if ask.templated and caps.adds_bos and not ask.by_ids:
        body["add_special_tokens"] = False
    return body


def check_ids(found: list[entries.Entry], sent: tuple[int, ...]) -> int:
    """The number of prompt tokens among the entries, which all have to be the ones sent."""
    if len(found) < len(sent):
        raise BadEvidence(
            f"{len(found)} log-probability entries for {len(sent)} prompt tokens: "
            "the prompt's own were left out"
        )
    for i, (entry, token) in enumerate(zip(found, sent, strict=False)):
        if entry.id != token:
            name = entry.text if entry.id is None else entry.id
            raise BadEvidence(f"entry {i} is {name!r}, but the token sent there is {token}")
    return len(sent)


def _prompt_size(found: list[entries.Entry], sent: str) -> int:
    """How many entries are the prompt's: those whose strings reach its end."""
    joined = 0
    for size, entry in enumerate(found):
        if joined >= len(sent):
            return size
        leading = size == 0 and entry.logprob is None and not sent.startswith(entry.text or "")
        joined += 0 if leading else len(entry.text or "")
    if joined < len(sent):
        raise BadEvidence("the entries' strings end before the prompt that was sent does")
    return len(found)

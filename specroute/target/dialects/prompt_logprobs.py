"""``prompt_logprobs``: vLLM's own field, on ``/completions`` by ids and on chat.

The answer has a list with one item per prompt token: null for the first, then
``{id: {logprob, rank, decoded_token}}`` with the prompt's own token first and the N most probable
after it. On completions it stands in ``choices[0]``, on chat at the top of the answer; it is
refused together with ``stream``, is always raw (before temperature), and skips the prefix cache.
On chat the server renders the prompt, so no template is needed here: the draft goes out as the
beginning of the assistant's turn. Templates trim that, so space at its end is held back and nothing
that was generated behind the trimmed text counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.alignment import split_trailing_space
from specroute.profiles import Capabilities
from specroute.request import CHAT, COMPLETIONS
from specroute.target import prefill
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Joins, Request, Shows
from specroute.target.dialects.echo import completion_body
from specroute.target.view import BadEvidence, View
from specroute.types import Usage


class PromptLogprobs:
    """Needs no template on chat; needs ids on completions."""

    name = "prompt_logprobs"
    needs_ids = False
    shows = Shows()

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids on completions; messages where an answer can be begun for the server."""
        forms: list[Form] = []
        if capabilities.completions and capabilities.id_prompts and capabilities.token_ids_param:
            forms.append("ids")
        if capabilities.chat and capabilities.prefill:
            forms.append("chat")
        return tuple(forms)

    def request(self, ask: Ask) -> Request:
        """On either endpoint."""
        if ask.form == "text":
            raise BadEvidence("prompt_logprobs names tokens by id: a text prompt can't be checked")
        if ask.form == "chat":
            body = chat_body(ask)
            body |= {"prompt_logprobs": ask.logprobs, "return_token_ids": True}
            return Request(CHAT, body)
        body = completion_body(ask) | {"logprobs": 1}
        if ask.draft:
            body["prompt_logprobs"] = ask.logprobs
        return Request(COMPLETIONS, body, joins=Joins())

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """Every item has to hold the token that was sent there."""
        choice = entries.choice_of(data)
        if ask.form == "chat":
            return self._view_of_chat(data, choice, ask, seconds)
        start, size = len(ask.ids or ()), len(ask.sent_ids)
        found = _own(choice.get("prompt_logprobs"), ask.sent_ids, start) if ask.draft else []
        return View(
            tuple(
                entries.position(entry, ask.logprobs, by_ids=True, where=f"prompt token {i}")
                for i, entry in enumerate(found[start:size], start)
            ),
            entries.generated(entries.read(choice.get("logprobs")), ask.max_tokens, by_ids=True),
            entries.finish_of(choice),
            Usage.from_wire(data.get("usage")),
            seconds,
            start,
        )

    def _view_of_chat(
        self, data: Mapping[str, Any], choice: Mapping[str, Any], ask: Ask, seconds: float
    ) -> View:
        shown = data.get("prompt_logprobs")
        tokens = data.get("prompt_token_ids")
        if isinstance(tokens, list):
            found = _own(shown, tuple(entries.an_id(token) for token in tokens))
        else:
            found = _own(shown, None)
        return view_of_chat(data, choice, found, ask, seconds)


def chat_body(ask: Ask) -> dict[str, Any]:
    """A chat whose answer begins with the committed text and the draft, with logprobs."""
    caps = ask.capabilities
    text, _ = split_trailing_space(ask.committed + ask.draft_text)
    body = {
        "model": ask.model,
        "messages": list(ask.messages or ()),
        "logprobs": True,
        "top_logprobs": ask.logprobs,
        caps.max_tokens_param: ask.max_tokens,
        **ask.sampling,
    }
    if text and not caps.prefill:
        raise BadEvidence("the server is not known to continue an answer")
    return prefill.continued(body, text, caps.prefill or "")


def view_of_chat(
    data: Mapping[str, Any],
    choice: Mapping[str, Any],
    found: list[entries.Entry],
    ask: Ask,
    seconds: float,
) -> View:
    """The view out of all prompt tokens ``found`` of a chat, whose tail the draft has to be."""
    text, kept = split_trailing_space(ask.committed + ask.draft_text)
    draft = text[len(ask.committed) :]
    start = len(found)
    if draft:
        start = entries.border(found, draft, ask.committed, whole=False)
    finish = entries.finish_of(choice)
    bonus: tuple[entries.Key, ...] = ()
    if not kept:
        bonus = entries.generated(
            entries.read(choice.get("logprobs")), ask.max_tokens, by_ids=False
        )
        bonus, finish = entries.borne_out(bonus, _said(choice, text), finish)
    return View(
        tuple(
            entries.position(entry, ask.logprobs, by_ids=False, where=f"prompt token {i}")
            for i, entry in enumerate(found[start:], start)
        ),
        bonus,
        None if kept else finish,
        Usage.from_wire(data.get("usage")),
        seconds,
        start,
    )


def _said(choice: Mapping[str, Any], prefilled: str) -> str:
    """The generated text; some servers repeat what was prefilled."""
    message = choice.get("message")
    said = message.get("content") if isinstance(message, Mapping) else None
    return said.removeprefix(prefilled) if isinstance(said, str) else ""


def _own(shown: Any, sent: tuple[int | None, ...] | None, start: int = 0) -> list[entries.Entry]:
    """One entry per prompt token; of those before ``start`` it is only looked whether they are the
    ones sent. Without ``sent`` an item's first token is the prompt's own."""
    if not isinstance(shown, list):
        raise BadEvidence("the answer has no prompt_logprobs")
    if sent is not None and len(shown) != len(sent):
        raise BadEvidence(f"{len(shown)} prompt_logprobs for {len(sent)} prompt tokens")
    found = []
    for i, item in enumerate(shown):
        token = sent[i] if sent is not None else None
        if item is None and i == 0:
            found.append(entries.Entry(None, token, None))
            continue
        if not isinstance(item, Mapping) or not item:
            raise BadEvidence(f"prompt token {i} has no log-probabilities")
        name = str(token) if sent is not None else next(iter(item))
        if name not in item:
            raise BadEvidence(f"the token sent as {i} is {name}, which is not among {[*item]}")
        found.append(entries.Entry(None, token, None) if i < start else _entry(item, name, i))
    return found


def _entry(item: Mapping[str, Any], own: str, i: int) -> entries.Entry:
    others = []
    for name, value in item.items():
        if not (isinstance(value, Mapping) and name.isascii() and name.isdigit()):
            raise BadEvidence(f"prompt token {i} has a malformed alternative {name!r}")
        text = value.get("decoded_token")
        others.append(
            entries.Alternative(
                text if isinstance(text, str) else None, int(name), value.get("logprob")
            )
        )
    mine = next(other for other in others if other.id == int(own))
    rank = entries.an_id(item[own].get("rank"))
    return entries.Entry(mine.text, mine.id, mine.logprob, tuple(others), rank=rank)

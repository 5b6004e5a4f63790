"""``fanout``: ``/completions`` with a list of prompts, one per drafted token and one more.

The prompts are context + draft[:0], …, context + draft[:K]; each is answered with ``max_tokens``
tokens of the target's own, so the server shows at every position what it would itself say there.
It needs no echo, reads the server's prefix cache, and is exact whatever the server's sampling is:
commit the server's token, accept the draft while they agree, and take all tokens of the first
answer that disagrees. It bills K + 1 prompts and K + 1 answers. Each answer has to be its own draw,
so no ``seed`` goes out. Known to work on llama.cpp's server and on vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.request import COMPLETIONS
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Joins, Request, Shows
from specroute.target.dialects.echo import completion_body
from specroute.target.view import BadEvidence, Position, Sample, View
from specroute.types import Usage


class Fanout:
    """Choices are matched to prompts by ``index``."""

    name = "fanout"
    needs_ids = False
    shows = Shows(drafted=False, samples=True, keeps_cache=True, per_position=True)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids where they are taken, else text."""
        if not (capabilities.completions and capabilities.list_prompts):
            return ()
        return ("ids", "text") if capabilities.id_prompts else ("text",)

    def request(self, ask: Ask) -> Request:
        """All prompts in one body."""
        body = completion_body(ask)
        body["prompt"] = _prompts(ask)
        body.pop("seed", None)
        body.pop(ask.capabilities.seed_param, None)
        return Request(COMPLETIONS, body, joins=Joins())

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """One choice per prompt, each with entries for what it generated."""
        prompts = _prompts(ask)
        answers = [
            _Answer(choice, ask, f"the answer to prompt {i}")
            for i, choice in enumerate(_in_order(data.get("choices"), len(prompts)))
        ]
        drafted: tuple[entries.Key, ...] = ask.draft_ids if ask.by_ids else _pieces(ask)
        samples = tuple(answer.sample for answer in answers)
        return View(
            tuple(a.position(key) for a, key in zip(answers, drafted, strict=False)),
            samples[-1].tokens,
            samples[-1].finish,
            _usage(data, ask, prompts, samples),
            seconds,
            len(ask.ids or ()),
            samples,
        )


class _Answer:
    """One choice, checked."""

    def __init__(self, choice: Mapping[str, Any], ask: Ask, where: str) -> None:
        finish, said = entries.finish_of(choice), choice.get("text")
        shown = choice.get("logprobs")
        # An end token may come without an entry: then there is no logprobs object either. So may
        # one that ends inside a character (llama.cpp): what was drawn there is then not known.
        hidden = finish == "length" and isinstance(said, str) and not said.strip("\ufffd")
        unnamed = finish == "stop" and not said
        found = entries.read(shown) if shown is not None or not (unnamed or hidden) else []
        if not (found or unnamed or hidden):
            raise BadEvidence(f"{where} is empty")
        tokens = entries.generated(found, ask.max_tokens, by_ids=ask.by_ids)
        self.top: tuple[tuple[entries.Key, float], ...] = ()
        if found:
            self.top = entries.ranked(found[0], ask.logprobs, by_ids=ask.by_ids, where=where)
        self._own = {tokens[0]: float(found[0].logprob)} if found else {}
        if not ask.by_ids:
            said = said if isinstance(said, str) else ""
            tokens, finish = entries.borne_out(tokens, said, finish)
        self.sample = Sample(tokens, finish)

    def position(self, drafted: entries.Key) -> Position:
        """The drafted token's log-probability is shown if it was sampled or is among the top."""
        known = {**self._own, **dict(self.top)}
        return Position(drafted, known.get(drafted), self.top)


def _pieces(ask: Ask) -> tuple[str, ...]:
    return ask.pieces or ((ask.draft_text,) if ask.draft else ())


def _prompts(ask: Ask) -> list[list[int]] | list[str]:
    if ask.by_ids:
        size = len(ask.ids or ())
        return [list(ask.sent_ids[: size + i]) for i in range(len(ask.draft) + 1)]
    if ask.form == "chat":
        raise BadEvidence("a list of prompts goes to /completions, not to chat")
    prompts = [ask.text or ""]
    for piece in _pieces(ask):
        prompts.append(prompts[-1] + piece)
    return prompts


def _in_order(choices: Any, count: int) -> list[Mapping[str, Any]]:
    if not isinstance(choices, list) or not all(isinstance(c, Mapping) for c in choices):
        raise BadEvidence("the answer has no choices")
    if len(choices) != count:
        raise BadEvidence(f"{count} prompts were sent, {len(choices)} choices came back")
    by_index = {entries.an_id(choice.get("index")): choice for choice in choices}
    if by_index.keys() != set(range(count)):
        raise BadEvidence(f"the choices' indices are {sorted(map(str, by_index))}")
    return [by_index[i] for i in range(count)]


def _usage(
    data: Mapping[str, Any],
    ask: Ask,
    prompts: list[list[int]] | list[str],
    samples: tuple[Sample, ...],
) -> Usage:
    """llama.cpp's usage counts one prompt of the list: never less than what is known to be used."""
    usage = Usage.from_wire(data.get("usage"))
    sent = sum(map(len, prompts)) if ask.by_ids else 0
    made = sum(len(sample.tokens) for sample in samples)
    return Usage(
        max(usage.prompt_tokens or 0, sent) or None,
        max(usage.completion_tokens or 0, made) or None,
        usage.cached_tokens,
    )

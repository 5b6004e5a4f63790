"""``native_fanout``: fan-out on llama.cpp's own ``POST /completion``, at the server's root.

The same question as ``fanout``, a list of prompts with one token each, but here every drawn token
is named by its id (``return_tokens``). The server's OpenAI endpoints show neither the id nor the
log-probability of a token that ends inside a character; a draw that can't be read would have to be
drawn anew, and that is a bias. Its sampling defaults are those of the chat endpoint. One prompt is
answered by an object, several by a list. Source: llama.cpp's server README, and what xllamacpp
answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Joins, Request, Shows
from specroute.target.view import BadEvidence, Position, Sample, View
from specroute.types import Usage

PATH = "/completion"
_FINISHES = {"eos": "stop", "limit": "length"}


class NativeFanout:
    """Ids only; answers are matched to prompts by ``index``."""

    name = "native_fanout"
    needs_ids = True
    shows = Shows(drafted=False, samples=True, keeps_cache=True, per_position=True)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids."""
        return ("ids",) if capabilities.id_prompts and capabilities.list_prompts else ()

    def request(self, ask: Ask) -> Request:
        """All prompts in one body. Every answer is its own draw, so no ``seed`` goes out."""
        payload: dict[str, Any] = {
            "model": ask.model,
            **{name: value for name, value in ask.sampling.items() if name != "seed"},
            "prompt": [list(prompt) for prompt in _prompts(ask)],
            "n_predict": ask.max_tokens,
            "n_probs": ask.logprobs,
            "return_tokens": True,
        }
        return Request(PATH, payload, root=True, listed=True, joins=Joins(answers="listed"))

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """One answer per prompt, each with the ids of what it generated."""
        prompts = _prompts(ask)
        answers = [
            _Answer(answer, ask, len(prompt), f"the answer to prompt {i}")
            for i, (answer, prompt) in enumerate(
                zip(_in_order(data, len(prompts)), prompts, strict=True)
            )
        ]
        samples = tuple(answer.sample for answer in answers)
        cached = [answer.cached for answer in answers if answer.cached is not None]
        return View(
            tuple(a.position(key) for a, key in zip(answers, ask.draft_ids, strict=False)),
            samples[-1].tokens,
            samples[-1].finish,
            Usage(
                sum(map(len, prompts)),
                sum(len(sample.tokens) for sample in samples),
                sum(cached) if cached else None,
            ),
            seconds,
            len(ask.ids or ()),
            samples,
        )


class _Answer:
    """One answer, checked."""

    def __init__(self, data: Mapping[str, Any], ask: Ask, sent: int, where: str) -> None:
        ids = data.get("tokens")
        if not (isinstance(ids, list) and ids):
            raise BadEvidence(f"{where} names no tokens")
        tokens = [entries.an_id(token) for token in ids]
        drawn = tuple(token for token in tokens if token is not None)
        if len(drawn) != len(ids):
            raise BadEvidence(f"{where} has tokens that are no ids: {ids!r}")
        if len(drawn) > ask.max_tokens:
            raise BadEvidence(f"{where} has {len(drawn)} tokens, {ask.max_tokens} were asked for")
        finish = _FINISHES.get(str(data.get("stop_type")))
        if finish is None:
            raise BadEvidence(f"{where} ended by {data.get('stop_type')!r}")
        if data.get("truncated") or data.get("tokens_evaluated") not in (None, sent):
            raise BadEvidence(
                f"{where} was made from {data.get('tokens_evaluated')!r} tokens, {sent} were sent"
            )
        self.sample = Sample(drawn, finish)
        timings = data.get("timings")
        self.cached = (
            entries.an_id(timings.get("cache_n")) if isinstance(timings, Mapping) else None
        )
        self.top: tuple[tuple[entries.Key, float], ...] = ()
        self._own: dict[entries.Key, float] = {}
        shown = data.get("completion_probabilities")
        found = entries.read({"content": shown}) if shown else []
        # A token inside a character has no entry, so that later ones may stand in its place.
        if len(found) == len(drawn):
            made = entries.generated(found, ask.max_tokens, by_ids=True)
            if made != drawn:
                raise BadEvidence(f"{where} names its tokens {ids!r} and then {list(made)!r}")
            self.top = entries.ranked(found[0], ask.logprobs, by_ids=True, where=where)
            self._own = {drawn[0]: float(found[0].logprob)}

    def position(self, drafted: int) -> Position:
        """The drafted token's log-probability is shown if it was drawn or is among the top."""
        known = {**self._own, **dict(self.top)}
        return Position(drafted, known.get(drafted), self.top)


def _prompts(ask: Ask) -> list[tuple[int, ...]]:
    size = len(ask.ids or ())
    return [ask.sent_ids[: size + i] for i in range(len(ask.draft) + 1)]


def _in_order(data: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    answers = data.get("answers", [data])
    if not isinstance(answers, list) or not all(isinstance(a, Mapping) for a in answers):
        raise BadEvidence("the answer is no list of answers")
    if len(answers) != count:
        raise BadEvidence(f"{count} prompts were sent, {len(answers)} answers came back")
    by_index = {entries.an_id(answer.get("index")): answer for answer in answers}
    if by_index.keys() != set(range(count)):
        raise BadEvidence(f"the answers' indices are {sorted(map(str, by_index))}")
    return [by_index[i] for i in range(count)]

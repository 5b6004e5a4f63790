"""Other servers' ways to score a prompt: vLLM's ``prompt_logprobs``, SGLang's ``/generate``.

Knows their request fields and how their answers are laid out; deliberately not how scores come
about, nor billing. Both answer whole, never as a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specroute.reference.answer import Shape, dumps
from specroute.reference.backend import Backend, Entry
from specroute.reference.batching import Choice, Item
from specroute.reference.errors import invalid
from specroute.reference.options import Options
from specroute.reference.request import Completion, boolean, integer, read_completion

_PARAMS = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "stop", "n")


def read_prompt_logprobs(body: Mapping[str, Any], options: Options) -> int | None:
    """vLLM's ``prompt_logprobs``: alternatives per prompt token, ``None`` if not asked for."""
    if "prompt_logprobs" in options.ignore:
        return None
    top = integer(body, "prompt_logprobs", 0, None)
    if top is None:
        return None
    if "prompt_logprobs" in options.disable:
        raise invalid("prompt_logprobs", top, "nothing: this server doesn't score prompts")
    if top > options.max_logprobs:
        raise invalid("prompt_logprobs", top, f"at most {options.max_logprobs}")
    if body.get("stream") and "streaming" not in options.ignore:
        raise invalid("prompt_logprobs", top, "nothing together with stream: true")
    return top


class PromptLogprobsShape:
    """An answer's shape with ``prompt_logprobs``: in each choice, or (a chat) at the top."""

    def __init__(self, inner: Shape, backend: Backend, choices: Sequence[Choice], n: int) -> None:
        """``choices``: ``n`` for each prompt, the first of which scored it."""
        self._inner, self._backend, self._choices, self._n = inner, backend, choices, n
        self.start, self.chunk, self.usage = inner.start, inner.chunk, inner.usage

    def whole(self, choices: Sequence[Sequence[Item]], counts: dict[str, Any]) -> bytes:
        """The inner answer, and the prompt's scores."""
        answer = json.loads(self._inner.whole(choices, counts))
        if answer["object"] == "chat.completion":
            answer["prompt_logprobs"] = self._items(self._choices[0])
            source = self._choices[0]
            answer["prompt_token_ids"] = list(source.state.ids[: source.prompt_tokens])
        else:
            for choice in answer["choices"]:
                first = choice["index"] // self._n * self._n
                choice["prompt_logprobs"] = self._items(self._choices[first])
        return dumps(answer)

    def _items(self, source: Choice) -> list[dict[str, Any] | None]:
        tokens = source.state.ids[1 : source.prompt_tokens]
        return [None, *map(self._item, tokens, source.scored)]

    def _item(self, token: int, entry: Entry) -> dict[str, Any]:
        """The token itself, then the best; its rank is a lower bound where it isn't among them."""
        value, tops = entry
        rank = sum(other >= value for _, other in tops)
        rank += token not in dict(tops)
        found = {str(token): self._one(token, value, max(rank, 1))}
        for i, (other, logprob) in enumerate(tops, 1):
            found.setdefault(str(other), self._one(other, logprob, i))
        return found

    def _one(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self._backend.piece(token).decode("utf-8", "replace")
        return {"logprob": logprob, "rank": rank, "decoded_token": text}


@dataclass(frozen=True, slots=True)
class Native:
    """A ``/generate`` request: what it generates, and which input tokens it scores."""

    completion: Completion
    starts: tuple[int | None, ...]
    """For each prompt its first input token with a log-probability; ``None``: none of them."""
    listed: bool
    """A list of prompts was sent, so a list comes back."""

    @property
    def scores(self) -> bool:
        """Whether any input token is scored."""
        return any(start is not None for start in self.starts)


def read_generate(body: Mapping[str, Any], model: str, options: Options) -> Native:
    """Read SGLang's native body; raises :class:`Refusal`."""
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise invalid("sampling_params", params, "an object")
    if boolean(body, "stream"):
        raise invalid("stream", True, "false: this endpoint answers whole")
    asked = {name: params[name] for name in _PARAMS if params.get(name) is not None}
    given = body.get("input_ids", body.get("text"))
    asked |= {
        "model": model,
        "prompt": given,
        "max_tokens": integer(params, "max_new_tokens", 1, 128),
        "seed": params.get("sampling_seed"),
    }
    scored = boolean(body, "return_logprob")
    if scored:
        asked["logprobs"] = integer(body, "top_logprobs_num", 0, 0)
    completion = read_completion(asked, options)
    count = len(completion.prompts)
    if completion.generate.n != 1:
        raise invalid("n", completion.generate.n, "1: this endpoint answers a prompt once")
    starts = body.get("logprob_start_len")
    if not isinstance(starts, list):
        starts = [starts] * count
    if len(starts) != count:
        raise invalid("logprob_start_len", starts, f"one number, or {count}")
    firsts = [integer({"logprob_start_len": s}, "logprob_start_len", -1, -1) for s in starts]
    return Native(
        completion,
        tuple(s if scored and s != -1 else None for s in firsts),
        isinstance(given, list) and bool(given) and not isinstance(given[0], int),
    )


class GenerateShape:
    """SGLang's answer: ``text``, ``output_ids`` and all the rest in ``meta_info``. Of a list of
    prompts a list of those, in the prompts' order and without numbers."""

    def __init__(
        self,
        id: str,
        sources: Sequence[Choice],
        starts: Sequence[int | None],
        logprobs: bool,
        *,
        listed: bool,
    ) -> None:
        self._id, self._sources, self._starts = id, sources, starts
        self._logprobs, self._listed = logprobs, listed

    def start(self, choice: Choice) -> bytes:
        """Never streamed."""
        return b""

    def chunk(self, item: Item) -> bytes:
        """Never streamed."""
        return b""

    def usage(self, counts: dict[str, Any]) -> bytes:
        """Never streamed."""
        return b""

    def whole(self, choices: Sequence[Sequence[Item]], counts: dict[str, Any]) -> bytes:
        """Tokens are ``[logprob, id, null]``; the first of the input has no log-probability. Each
        answer has its own usage, and without ``prompt_tokens_details`` none of it was cached."""
        told = "prompt_tokens_details" in counts
        answers = [
            self._one(items, source, start, source.cached if told else 0)
            for items, source, start in zip(choices, self._sources, self._starts, strict=False)
        ]
        return dumps(answers if self._listed else answers[0])

    def _one(
        self, made: Sequence[Item], source: Choice, start: int | None, cached: int
    ) -> dict[str, Any]:
        items = [item for item in made if item.token is not None]
        meta: dict[str, Any] = {
            "id": self._id,
            "finish_reason": {"type": made[-1].finish},
            "prompt_tokens": source.prompt_tokens,
            "completion_tokens": source.generated,
            "cached_tokens": cached,
        }
        if self._logprobs:
            meta["output_token_logprobs"] = [_own(item.token, item.entry) for item in items]
            meta["output_top_logprobs"] = [_tops(item.entry) for item in items]
            meta["input_token_logprobs"], meta["input_top_logprobs"] = [], []
        if start is not None:
            ids = source.state.ids[: source.prompt_tokens]
            entries: list[Entry | None] = [None, *source.scored]
            shown = list(zip(ids, entries, strict=True))[start:]
            shown[:1] = [(token, None) for token, _ in shown[:1]]
            meta["input_token_logprobs"] = [_own(t, e) for t, e in shown]
            meta["input_top_logprobs"] = [_tops(e) for _, e in shown]
        text = "".join(item.shown for item in made)
        output = [item.token for item in items]
        return {"text": text, "output_ids": output, "meta_info": meta}


def _own(token: int | None, entry: Entry | None) -> list[Any]:
    return [entry and entry[0], token, None]


def _tops(entry: Entry | None) -> list[Any] | None:
    return [[logprob, token, None] for token, logprob in entry[1]] if entry else None

"""``generate``: SGLang's native endpoint, at the server's root.

``logprob_start_len`` says from which input token on log-probabilities are returned; everything
before it may come from the prefix cache, which echo on ``/completions`` gives up. The entry at the
start itself is always null, so the start is the last token *before* the draft. Tokens are
``[logprob, id, text or null]``, ``input_top_logprobs`` lists of those, all by id.

The native endpoint has sampling defaults of its own (temperature 1, nothing else), whatever
``--sampling-defaults`` gives chat: what was generated is the target's own draw only where the
caller's settings are all stated. Log-probabilities of generated tokens are after temperature; of
input tokens, raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.profiles import Capabilities
from specroute.target.dialects import entries
from specroute.target.dialects.base import Ask, Form, Joins, Request, Shows
from specroute.target.view import BadEvidence, View
from specroute.types import Usage

PATH = "/generate"
_SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "logit_bias",
    }
)
"""Fields that mean the same in ``sampling_params``."""


class Generate:
    """Ids only: where the draft begins has to be known in tokens."""

    name = "generate"
    needs_ids = True
    shows = Shows(keeps_cache=True)

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """Ids."""
        return ("ids",) if capabilities.id_prompts else ()

    def request(self, ask: Ask) -> Request:
        """Asks from the last context token on."""
        if not ask.ids:
            raise BadEvidence("generate needs the context as token ids")
        params = {
            {"seed": "sampling_seed"}.get(name, name): value for name, value in ask.sampling.items()
        }
        unknown = params.keys() - _SAMPLING - {"sampling_seed"}
        if unknown:
            raise BadEvidence(f"generate has no {', '.join(sorted(unknown))}")
        payload = {
            "input_ids": list(ask.sent_ids),
            "sampling_params": {**params, "max_new_tokens": ask.max_tokens},
            "return_logprob": True,
            "logprob_start_len": len(ask.ids) - 1,
            "top_logprobs_num": ask.logprobs,
        }
        joins = Joins(("input_ids", "logprob_start_len"), answers="bare", numbered=False)
        return Request(PATH, payload, root=True, joins=joins)

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """One entry for the last context token, then one per drafted token, each with its id."""
        meta = data.get("meta_info")
        if not isinstance(meta, Mapping):
            raise BadEvidence("the answer has no meta_info")
        context = ask.ids or ()
        expected = (context[-1], *ask.draft_ids)
        shown = _tokens(meta.get("input_token_logprobs"), "input_token_logprobs")
        if len(shown) != len(expected):
            raise BadEvidence(
                f"{len(shown)} input_token_logprobs from the last context token on, "
                f"{len(expected)} were due"
            )
        tops = meta.get("input_top_logprobs") if ask.draft else [None]
        if not isinstance(tops, list) or len(tops) != len(expected):
            raise BadEvidence("input_top_logprobs are not one list per input token")
        positions = []
        for i, (token, sent, top) in enumerate(zip(shown, expected, tops, strict=True)):
            if token.id != sent:
                raise BadEvidence(f"input token {i} is {token.id}, the one sent there is {sent}")
            if i:
                others = tuple(_tokens(top, f"the alternatives of input token {i}"))
                entry = entries.Entry(token.text, token.id, token.logprob, others)
                where = f"input token {i}"
                positions.append(entries.position(entry, ask.logprobs, by_ids=True, where=where))
        made = [
            entries.Entry(token.text, token.id, token.logprob)
            for token in _tokens(meta.get("output_token_logprobs"), "output_token_logprobs")
        ]
        return View(
            tuple(positions),
            entries.generated(made, ask.max_tokens, by_ids=True),
            _finish(meta.get("finish_reason")),
            Usage.from_wire(
                {
                    **meta,
                    "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")},
                }
            ),
            seconds,
            len(context),
        )


def _tokens(shown: Any, what: str) -> list[entries.Alternative]:
    """``[[logprob, id, text], …]``."""
    if not isinstance(shown, list):
        raise BadEvidence(f"the answer has no {what}")
    found = []
    for item in shown:
        if not (isinstance(item, list) and len(item) >= 2):
            raise BadEvidence(f"{what} has an item {item!r}")
        text = item[2] if len(item) > 2 and isinstance(item[2], str) else None
        found.append(entries.Alternative(text, entries.an_id(item[1]), item[0]))
    return found


def _finish(reason: Any) -> str | None:
    kind = reason.get("type") if isinstance(reason, Mapping) else reason
    return kind if isinstance(kind, str) else None

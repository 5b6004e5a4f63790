"""How much a call may come to, before it leaves: an upper estimate of its tokens and dollars. Pure.

Knows request bodies. No tokenizer is asked: a token of the usual vocabularies holds three bytes of
text or more on average in prose, code and most scripts (English prose about 4.5), so bytes / 3 is
an upper estimate, not a bound. The bill corrects it afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specroute.ledger import Price, cost
from specroute.types import Usage

BYTES_PER_TOKEN = 3
PER_MESSAGE = 8
"""Tokens for a message's role and separators (chat templates have 3 to 7)."""
PER_IMAGE = 1600
"""Tokens of a picture or a sound, whose real count each provider makes by rules of its own."""
OUTPUT = 1024
"""Tokens of an answer where the request doesn't limit it."""

_LIMITS = (
    "max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", "max_new_tokens"
)  # fmt: skip
_TEXTS = ("prompt", "input", "input_ids", "suffix", "instructions", "text")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper estimates for one call, in tokens. ``limited``: the request limits its answer.
    ``answers``: how many are asked for at once; ``output`` is that of all."""

    prompt: int
    output: int
    limited: bool = True
    answers: int = 1

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt + self.output

    def usd(self, price: Price) -> float:
        """Dollars, nothing of the prompt read from a cache."""
        dollars = cost(Usage(self.prompt, self.output), price)
        assert dollars is not None
        return dollars


def estimate(content: bytes | None) -> Estimate:
    """Of a body that may be JSON; anything else (an upload) counts no tokens."""
    if not content:
        return Estimate(0, 0)
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return Estimate(0, 0)
    return of_body(body) if isinstance(body, dict) else Estimate(0, 0)


def of_body(body: Mapping[str, Any]) -> Estimate:
    """Of a chat, completions, responses or embeddings body, or of SGLang's native one, whose
    limit is among its ``sampling_params``."""
    params = body.get("sampling_params")
    if isinstance(params, Mapping):
        body = {**params, **body}
    prompt = sum(_tokens(body[name]) for name in _TEXTS if name in body)
    messages = body.get("messages")
    if isinstance(messages, list):
        prompt += sum(_tokens(m) + PER_MESSAGE for m in messages)
    for name in ("tools", "functions", "response_format"):
        if body.get(name):
            prompt += _text(json.dumps(body[name]))
    if not any(name in body for name in ("messages", "prompt", "instructions")) and not any(
        name in body for name in _LIMITS
    ):
        # An embedding has no answer of tokens; /responses has, and its prompt is its input.
        output, limited = (OUTPUT, False) if "stream" in body or "tools" in body else (0, True)
        return Estimate(prompt, output, limited)
    limits = [body[name] for name in _LIMITS if _is_count(body.get(name))]
    each = max(limits) if limits else OUTPUT
    times = body["n"] if _is_count(body.get("n")) else 1
    several = body.get("prompt", body.get("input_ids"))
    if isinstance(several, list) and several and not isinstance(several[0], int):
        times *= len(several)  # A prompt each.
    best = body["best_of"] if _is_count(body.get("best_of")) else 1
    answers = max(times, best, 1)
    return Estimate(prompt, each * answers, bool(limits), answers)


def _tokens(value: Any) -> int:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        if value and all(isinstance(v, int) for v in value):
            return len(value)
        return sum(map(_tokens, value))
    if isinstance(value, Mapping):
        kind = str(value.get("type", ""))
        if any(word in kind for word in ("image", "audio", "file")):
            return PER_IMAGE
        return sum(_tokens(v) for k, v in value.items() if k not in ("type", "role"))
    return 0


def _text(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

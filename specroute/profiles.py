"""What providers can do, as dated facts read from ``providers/*.toml``.

A profile is asked what a provider *can do*, never which one it is. ``None`` means unknown: callers
then stay cautious until behaviour has shown otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server can do for one model. Field names are the TOML keys."""

    chat: bool = True
    completions: bool | None = None
    stream_usage: bool | None = None
    """Takes ``stream_options.include_usage``."""
    max_tokens_param: str = "max_tokens"
    """``max_tokens`` or ``max_completion_tokens``, on chat."""
    min_max_tokens: int = 1
    score: tuple[str, ...] = ()
    """Scoring dialects, best first; only ``echo`` is implemented."""
    echo_max_logprobs: int | None = None
    """Largest ``logprobs=N`` on /completions with echo."""
    id_prompts: bool | None = None
    """/completions takes lists of token ids as the prompt."""
    list_prompts: bool | None = None
    chat_max_logprobs: int | None = None
    logprobs: str | None = None
    """``raw`` or ``processed`` (after temperature and truncation), of generated tokens."""
    token_ids_param: str | None = None
    """Request field that makes logprob tokens come as ``token_id:N``."""
    template: str | None = None
    """``tokenize`` (POST /tokenize with messages) or ``apply-template``: renders chat prompts."""
    prefill: str | None = None
    """``continue_final_message | prefix | partial | trailing_assistant | body_prefix``."""
    prefill_repeats: bool | None = None
    """The reply repeats the prefilled text."""
    prefill_trims: bool | None = None
    """Trailing whitespace of the prefill is lost."""
    prediction: bool | None = None
    cached_tokens: bool | None = None
    """Usage shows prompt tokens read from cache."""
    sampling_defaults: str | None = None
    """``openai`` (temperature 1, top_p 1, nothing else) or ``model`` (the server's own)."""
    eos_in_usage: bool | None = None
    """completion_tokens counts the end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One dated source for one or more fields."""

    fields: tuple[str, ...]
    source: str
    kind: str
    """``source`` (read in code), ``docs``, ``issue``, ``measured`` or ``unknown``."""
    checked: str
    """ISO date."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider's facts."""

    name: str
    title: str
    base_url: str | None
    env_key: str | None
    auth: str = "bearer"
    """``bearer`` (Authorization header) or ``api-key`` (Azure's header) or ``none``."""
    price_provider: str | None = None
    """The provider's id in genai-prices, ``None`` when it has none."""
    capabilities: Capabilities = Capabilities()
    models: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """(glob pattern, capability overrides), later rows win."""
    facts: tuple[Fact, ...] = ()
    quirks: tuple[str, ...] = field(default=())
    """Sentences for people."""

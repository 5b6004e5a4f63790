"""Everything that one server can be told. Values only; ``__main__.py`` reads them from flags.

Knows the names of the capabilities and what each of them covers in a request; deliberately not how
a request is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specroute.reference.pace import Pace

ENDPOINTS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
    "apply_template": "/apply-template",
    "generate": "/generate",
    "embeddings": "/v1/embeddings",
    "models": "/v1/models",
}
"""Capabilities that are a whole endpoint: switched off, it answers 404."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "echo": ("echo",),
    "logprobs": ("logprobs", "top_logprobs"),
    "prefill": ("continue_final_message", "prefix"),
    "streaming": ("stream",),
    "stream_usage": ("stream_options",),
    "logit_bias": ("logit_bias",),
    "penalties": ("presence_penalty", "frequency_penalty"),
    "seed": ("seed",),
    "stop": ("stop",),
    "n": ("n",),
    "top_k": ("top_k",),
    "prediction": ("prediction",),
    "tools": ("tools", "tool_choice"),
    "response_format": ("response_format",),
    "token_id_names": ("return_tokens_as_token_ids",),
    "token_ids": ("return_token_ids",),
    "prompt_logprobs": ("prompt_logprobs",),
}
"""Capabilities that are parameters: off, asking for one is a 400; ignored, it has no effect."""

SHAPES = ("id_prompts", "list_prompts", "cached_tokens")
"""The rest: kinds of prompt (400 when off), and usage without ``prompt_tokens_details``."""

CAPABILITIES = (*ENDPOINTS, *PARAMETERS, *SHAPES)

PREFILLS = ("continue_final_message", "trailing_assistant", "prefix", "partial", "body_prefix")
"""Ways to give the start of the answer; ``docs/reference-server.md`` says which API has which."""

QUIRKS = (
    "echo_shifted",
    "scaled_logprobs",
    "first_prompt_only",
    "answers_unordered",
    "answers_misnumbered",
)
"""Faults that real servers have: each echoed logprob is the next token's, as llama-cpp-python's
are; generated tokens' logprobs are after temperature, as SGLang's are; of a list of prompts only
the first is answered; a list's answers come in another order than its prompts, rightly numbered
(which the API allows), or numbered in the order in which they come."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one server does, apart from the distribution behind it."""

    names: tuple[str, ...] = ()
    """Model names it answers to; empty means the backend's own."""
    any_model: bool = False
    """It answers to every other name as well."""
    pace: Pace = field(default_factory=Pace)
    disable: frozenset[str] = frozenset()
    """Capabilities that are refused."""
    ignore: frozenset[str] = frozenset()
    """Parameter capabilities that are dropped in silence."""
    prefill: frozenset[str] = frozenset({"continue_final_message"})
    prefill_repeats: bool = False
    """The answer starts with the prefill."""
    prefill_trims: bool = False
    """White space at the prefill's end is lost."""
    quirks: frozenset[str] = frozenset()
    max_logprobs: int = 20
    api_key: str | None = None
    seed: int = 0
    """Of everything random that no request seeds."""
    max_batch: int = 256

    def __post_init__(self) -> None:
        """``ValueError`` names an unknown capability, prefill or quirk and lists the known."""
        for what, given, known in (
            ("disable", self.disable, CAPABILITIES),
            ("ignore", self.ignore, tuple(PARAMETERS)),
            ("prefill", self.prefill, PREFILLS),
            ("quirk", self.quirks, QUIRKS),
        ):
            for name in sorted(given):
                if name not in known:
                    raise ValueError(f"{what}: unknown {name!r}; expected {', '.join(known)}")

"""Every name that telemetry uses.

Those with ``gen_ai.`` are OpenTelemetry's semantic conventions for generative AI, in development
there (github.com/open-telemetry/semantic-conventions, ``docs/gen-ai``, seen 2026-11); the others
are our own. docs/telemetry.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
ADDRESS = "server.address"
PORT = "server.port"

DURATION = "gen_ai.client.operation.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
TOKEN_USAGE = "gen_ai.client.token.usage"

CHAT, TEXT = "chat", "text_completion"

PROVIDERS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "deepseek": "deepseek",
    "deepseek-beta": "deepseek",
    "gemini": "gcp.gemini",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "xai": "x_ai",
}
"""Profiles whose providers the conventions have a name for; others go by their profile's."""

OWN = "specroute."
MODEL = "specroute.model"
TARGET = "specroute.target"
PURPOSE = "specroute.purpose"
OUTCOME = "specroute.outcome"

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The conventions' buckets for durations,"""
CHUNK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
"""ours for the time between two pieces,"""
TOKENS = tuple(4**n for n in range(14))
"""and theirs for tokens."""
RATIO = tuple(n / 10 for n in range(11))
K = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)

# metric -> (kind, unit, buckets, description)
METRICS: Mapping[str, tuple[str, str, tuple[float, ...], str]] = {
    DURATION: ("histogram", "s", SECONDS, "A request from its start to its end, retries included"),
    FIRST_CHUNK: ("histogram", "s", SECONDS, "Streamed: until the first piece of the answer"),
    PER_CHUNK: (
        "histogram",
        "s",
        CHUNK_SECONDS,
        "Streamed: mean seconds per token after the first",
    ),
    TOKEN_USAGE: ("histogram", "{token}", TOKENS, "Billed tokens of each call to a provider"),
    "specroute.cost": ("counter", "USD", (), "Dollars of all calls, where prices are known"),
    "specroute.saved.seconds": ("updown", "s", (), "Expected of a plain call, less what it took"),
    "specroute.saved.dollars": ("updown", "USD", (), "Expected of a plain call, less the cost"),
    "specroute.rounds": ("counter", "{round}", (), "Rounds of speculation"),
    "specroute.tokens.drafted": ("counter", "{token}", (), "Tokens drafted"),
    "specroute.tokens.accepted": ("counter", "{token}", (), "Drafted tokens that were accepted"),
    "specroute.tokens.rejected": ("counter", "{token}", (), "Drafted tokens that were refused"),
    "specroute.acceptance_rate": ("histogram", "1", RATIO, "accepted / drafted of each request"),
    "specroute.k": ("histogram", "{token}", K, "Tokens drafted per round, mean of each request"),
}

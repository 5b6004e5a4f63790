"""``specroute.toml`` (or the same structure as a dict) as frozen values.

``values`` says what a config is; ``parse`` checks one, with ``provider`` and ``policy`` for those
two tables; ``find`` looks for the file, ``overrides`` reads ``-c a.b=value``, ``origins`` notes
where each value came from, and ``plain`` makes the config of a client that has no file.
"""

from specroute.config.find import find, load
from specroute.config.parse import parse
from specroute.config.plain import plain_config
from specroute.config.policy import parse_policy, with_policy
from specroute.config.provider import provider_for
from specroute.config.values import (
    FALLBACK_ON,
    Config,
    DraftConfig,
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
    Record,
    Shadow,
    StoreConfig,
    TelemetryConfig,
    Timeouts,
)

__all__ = [
    "FALLBACK_ON",
    "Config",
    "DraftConfig",
    "ModelConfig",
    "PolicyConfig",
    "ProviderConfig",
    "Record",
    "Shadow",
    "StoreConfig",
    "TelemetryConfig",
    "Timeouts",
    "find",
    "load",
    "parse",
    "parse_policy",
    "plain_config",
    "provider_for",
    "with_policy",
]

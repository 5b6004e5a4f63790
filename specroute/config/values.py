"""What a config is, as frozen values.

Knows every key, its type and its default; deliberately not how a file becomes one, nor anything of
HTTP, models or policies' behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specroute.errors import ConfigError
from specroute.tables import secret_name
from specroute.types import TargetRef

FALLBACK_ON = ("429", "5xx", "connect", "first_token", "stall", "truncated")
"""The faults that another target may make good; what they mean stands in ``http.faults``."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines in seconds. They span all attempts at a target, ``total`` all of a request;
    keep-alives reset none."""

    connect: float = 5.0
    first_token: float = 600.0
    """The first attempt's start to the first content. An answer that isn't streamed has ``total``
    instead, unless the config sets this."""
    stall: float = 600.0
    """Longest silence between two pieces of content."""
    total: float = 3600.0
    idle: float = 60.0
    """A stream that its reader holds without reading is ended after this; 0 never."""


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One ``[providers.<name>]`` table, its profile's defaults filled in."""

    name: str
    profile: str
    base_url: str
    env_key: str | None = None
    api_key: str | None = field(default=None, repr=False)
    """Resolved from ``env_key`` when the config is loaded; never shown."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeouts: Timeouts = Timeouts()
    timeouts_set: frozenset[str] = frozenset()
    """Names of the timeouts that the file sets itself."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """Overrides over the profile."""
    prices: Mapping[str, Any] = field(default_factory=dict)
    """USD per million tokens: ``input``, ``output``, ``cached_input``; or tables keyed by model."""
    probe: bool = True
    """A first look at the server beside its first use, where the findings can be kept."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """``rpm``: calls, ``tpm``: tokens a minute, where limited."""
    declared: bool = True
    """False for a bundled profile that is used without a ``[providers.<name>]`` table."""

    def key(self) -> str | None:
        """The key to send, ``None`` when the provider takes none.

        :class:`ConfigError` when there is a variable for it and it isn't set: a declared provider
        is checked when the config is loaded, an undeclared one only when it is used.
        """
        if self.api_key is None and self.env_key is not None:
            raise ConfigError(
                f"providers.{self.name}.env_key: the environment variable {self.env_key} is not "
                f"set; set it to the key for {self.base_url}"
            )
        return self.api_key

    @property
    def secrets(self) -> tuple[str, ...]:
        """What goes along with each call and is nobody else's to see: the key, and headers and
        query values whose names say that they carry one."""
        named = (*self.headers.items(), *self.query.items())
        hidden = (value.removeprefix("Bearer ") for name, value in named if secret_name(name))
        return tuple(filter(None, (self.api_key, *hidden)))


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """One ``[drafts.<name>]`` table."""

    name: str
    kind: str
    """``local | ngram | remote``."""
    model: str | None = None
    provider: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    temperature: float | None = None
    """The draft's own temperature; ``None``: greedy at the target's T = 0, else the request's."""
    max_memory: str | None = None
    min_probability: float = 0.0
    """A round's draft ends after a token that the draft gives less probability than this."""


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """A preset's name and the parameters laid over it."""

    preset: str = "balanced"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One ``[models.<name>]`` table: what the app passes as ``model=``."""

    name: str
    targets: tuple[TargetRef, ...]
    drafts: tuple[str, ...] = ()
    policy: PolicyConfig = PolicyConfig()
    tokenizer: str | None = None
    fallback_on: tuple[str, ...] = FALLBACK_ON
    """The faults upon which another target, or the same one again, goes on."""
    interchangeable: bool = False
    """The policy may pick among the targets; else their order is one of preference."""
    max_cost_usd: float | None = None
    """Of each request, all its calls together."""


@dataclass(frozen=True, slots=True)
class Record:
    """``record = "traces.jsonl"`` or ``record = {path = "traces.jsonl", texts = true}``."""

    path: str
    texts: bool = False
    """Prompts and answers are recorded as well."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """``[shadow]``: what finished plain answers may be used for."""

    share: float = 0.05
    """The most of a drafter's time that scoring its drafts against them takes; 0: none."""
    paid: bool = False
    """Remote drafts, too, which are billed."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The ``[store]`` table: who shares limits, budgets and measurements."""

    kind: str = "memory"
    """``memory``: this client; ``file``: every process that uses the same file; ``redis``: every
    process at the same server."""
    path: str | None = None
    """``None``: ``limits.sqlite3`` in the user's state folder."""
    url: str | None = field(default=None, repr=False)
    """Redis' or Valkey's, whose password may be in it."""
    measurements: bool = True
    """With ``redis``: its workers learn as one."""
    host: str | None = None
    """The name that machines of like speed and place in the network share; ``None``: their own."""


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """The ``[telemetry]`` table."""

    traces: bool = True
    metrics: bool = True
    """By OpenTelemetry, where its API is installed and an SDK set up."""
    log: str = "debug"
    """The level of the line for each request: ``off | debug | info``."""


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file, validated."""

    providers: Mapping[str, ProviderConfig]
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    drafts: Mapping[str, DraftConfig] = field(default_factory=dict)
    default_provider: str | None = None
    record: Record | None = None
    """Where finished requests are recorded."""
    shadow: Shadow = Shadow()
    daily_usd: float | None = None
    """``budgets.daily.usd``; a day is one from midnight to midnight UTC."""
    store: StoreConfig = StoreConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    source: str = "argument"
    """Where it came from: a path, ``argument``, or ``AsyncSpecRoute(base_url=…)``."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted key → where its value came from."""

"""What providers can do, as dated facts read from ``providers/*.toml``.

A profile is asked what a provider *can do*, never which one it is. ``None`` means unknown: callers
then stay cautious until behaviour has shown otherwise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from specroute import bundled_data, tables
from specroute.errors import ConfigError

SCORE_DIALECTS = (
    "echo",
    "prompt_logprobs",
    "echo_last",
    "generate",
    "native_fanout",
    "fanout",
    "mistral",
)
PREFILL_DIALECTS = (
    "continue_final_message",
    "prefix",
    "partial",
    "trailing_assistant",
    "body_prefix",
)
PREDICTION_CONFLICTS = (
    "tools",
    "audio",
    "n",
    "logprobs",
    "presence_penalty",
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "response_format",
    "stop",
)
FACT_KINDS = ("source", "docs", "issue", "measured", "unknown")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server can do for one model. Field names are the TOML keys."""

    chat: bool = True
    completions: bool | None = None
    """/completions is there and continues the prompt just as it is sent, no chat template laid
    over it. Plain calls are forwarded whatever this says."""
    stream_usage: bool | None = None
    """Takes ``stream_options.include_usage``."""
    max_tokens_param: str = "max_tokens"
    """``max_tokens`` or ``max_completion_tokens``, on chat."""
    min_max_tokens: int = 1
    score: tuple[str, ...] = ()
    """Scoring dialects, best first: ``echo``, ``prompt_logprobs``, ``echo_last``, ``generate``,
    ``native_fanout``, ``fanout``, ``mistral``. A list may name one that shows log-probabilities
    and a fan-out."""
    echo_max_logprobs: int | None = None
    """Largest ``logprobs=N`` on /completions, with echo or without."""
    echo_shape: str = "choices"
    """Where echoed logprobs stand: ``choices`` (``choices[i].logprobs``) or ``prompt`` (a list
    beside ``choices``, without ``text_offset``)."""
    echo_keeps_cache: bool | None = None
    """Echo rounds read the server's prefix cache; false: every round is a full prefill."""
    zero_max_tokens: str | None = None
    """What ``max_tokens = 0`` does on /completions: ``refused``, ``unlimited``, ``echo_only``
    (accepted together with echo) or ``evaluate`` (reads the prompt, generates nothing)."""
    adds_bos: bool | None = None
    """/completions adds special tokens to text prompts (templated text then has two)."""
    id_prompts: bool | None = None
    """/completions takes lists of token ids as the prompt."""
    list_prompts: bool | None = None
    joint_rounds: bool | None = None
    """Scoring rounds of several requests may go out in one, as a list of prompts, and it is quicker
    than one request each. Held against the server's own tokens before it is used."""
    chat_max_logprobs: int | None = None
    """Largest ``top_logprobs`` on chat; 0: none at all."""
    logprobs: str | None = None
    """Of generated tokens: ``raw``, ``processed`` (after temperature and truncation), or
    ``tempered`` (after temperature and penalties, and at temperature 0 as at 1)."""
    logit_bias: bool | None = None
    """/completions takes ``logit_bias`` by token id."""
    token_ids_param: str | None = None
    """Request field that makes logprob tokens come as ``token_id:N``."""
    answer_ids_param: str | None = None
    """Request field that puts the generated tokens' ids beside an answer, as the choice's
    ``token_ids``: in chat answers, and in /completions answers and streams."""
    template: str | None = None
    """``tokenize`` (POST /tokenize with messages) or ``apply-template``: renders chat prompts."""
    tokenize: str | None = None
    """POST /tokenize turns a text into ids, given as ``prompt`` (vLLM) or ``content`` (llama.cpp).
    Where it renders chats (``template``), ``prompt`` goes without saying."""
    tokenize_limit: bool | None = None
    """``max_model_len`` of /tokenize is the longest context served; false: it may be more."""
    prefill: str | None = None
    """``continue_final_message | prefix | partial | trailing_assistant | body_prefix``; a file
    says ``none`` where there is known to be none."""
    prefill_repeats: bool | None = None
    """The reply repeats the prefilled text."""
    prefill_trims: bool | None = None
    """Trailing whitespace of the prefill is lost."""
    prediction: bool | None = None
    """Takes ``prediction`` (predicted outputs) on chat."""
    prediction_without: tuple[str, ...] = (
        "tools",
        "audio",
        "n",
        "logprobs",
        "presence_penalty",
        "frequency_penalty",
    )
    """Request fields that ``prediction`` doesn't go together with: ``n`` above 1, penalties above
    0, the others at all. The default is OpenAI's list."""
    speculation: bool | None = None
    """Takes the expected text as ``speculation`` on /completions."""
    batch_api: bool | None = None
    """Has /files and /batches in OpenAI's format."""
    cached_tokens: bool | None = None
    """Usage shows prompt tokens read from cache."""
    sampling_defaults: str | None = None
    """``openai`` (temperature 1, top_p 1, nothing else) or ``model`` (the server's own)."""
    eos_in_usage: bool | None = None
    """completion_tokens counts the end-of-sequence token."""
    seed_param: str = "seed"
    """``seed`` or ``random_seed``."""
    unknown_fields: str | None = None
    """Request fields that the server doesn't know: ``ignored`` or ``refused``."""

    @property
    def ids_asked(self) -> dict[str, bool]:
        """The fields of a request that make generated tokens come with their ids, in any answer but
        a chat's stream; none where there are none."""
        return {name: True for name in (self.token_ids_param, self.answer_ids_param) if name}


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
    hosts: tuple[str, ...] = ()
    """Further hosts of the same provider, reached over https."""
    stated: frozenset[str] = frozenset()
    """Capabilities that the file states: there an empty value means none, elsewhere unknown."""

    def owns(self, base_url: str) -> bool:
        """Whether ``base_url`` is the provider's own address: same scheme, host and port.

        Only there may the key of ``env_key`` go, and only there do the provider's prices hold,
        unless the config says so itself.
        """
        there = _origin(base_url)
        if there is None:
            return False
        own = [_origin(self.base_url)] if self.base_url else []
        return there in own or there in [("https", host, 443) for host in self.hosts]


_VALUES: Mapping[str, tuple[str, ...]] = {
    "max_tokens_param": ("max_tokens", "max_completion_tokens"),
    "score": SCORE_DIALECTS,
    "echo_shape": ("choices", "prompt"),
    "prediction_without": PREDICTION_CONFLICTS,
    "zero_max_tokens": ("refused", "unlimited", "echo_only", "evaluate"),
    "logprobs": ("raw", "processed", "tempered"),
    "template": ("tokenize", "apply-template"),
    "tokenize": ("prompt", "content"),
    "sampling_defaults": ("openai", "model"),
    "seed_param": ("seed", "random_seed"),
    "unknown_fields": ("ignored", "refused"),
}


def _words(choices: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    one = tables.one_of(*choices)

    def read(value: Any) -> tuple[str, ...]:
        return tuple(one(word) for word in tables.strings(value))

    return read


def _count(value: Any) -> int:
    return tables.integer(value, at_least=0)


def _reader(name: str, annotation: str) -> Callable[[Any], Any]:
    kind = annotation.removesuffix(" | None")
    if kind == "tuple[str, ...]":
        return _words(_VALUES[name])
    if name == "prefill":
        word = tables.one_of("none", *PREFILL_DIALECTS)
        return lambda value: None if word(value) == "none" else value
    if name in _VALUES:
        return tables.one_of(*_VALUES[name])
    return {"bool": tables.boolean, "int": _count, "str": tables.text}[kind]


CAPABILITY_READERS: Mapping[str, Callable[[Any], Any]] = {
    f.name: _reader(f.name, str(f.type)) for f in fields(Capabilities)
}
"""Capability → the reader that checks a value for it."""

_DEFAULTS: Mapping[str, Any] = {
    f.name: getattr(Capabilities(), f.name) for f in fields(Capabilities)
}


def read_capabilities(table: tables.Table) -> dict[str, Any]:
    """A table of capabilities, checked; problems go to the table."""
    found = {
        key: table.get(key, read, _DEFAULTS[key])
        for key, read in CAPABILITY_READERS.items()
        if key in table
    }
    for key in table.data:
        if key in CAPABILITY_READERS:
            continue
        hint = tables.suggest(key, CAPABILITY_READERS)
        table.problem(f"unknown capability{hint}; `specroute providers` lists them", key)
    return found


def profile_names() -> tuple[str, ...]:
    """The profiles that ship."""
    return bundled_data.names("providers")


@cache
def load_profile(name: str) -> Profile:
    """Read ``providers/<name>.toml``; :class:`ConfigError` for an unknown name or a bad file."""
    known = profile_names()
    if name not in known:
        raise ConfigError(
            f"unknown profile {tables.show(name)}{tables.suggest(name, known)}; known: "
            f"{tables.listed(known)}"
        )
    return parse_profile(name, tomllib.loads(bundled_data.read("providers", name)))


def parse_profile(name: str, data: Mapping[str, Any]) -> Profile:
    """One profile's table, checked; every problem of it in one :class:`ConfigError`."""
    problems: list[str] = []
    root = tables.Table(data, (), problems)
    rows = root.raw("models") or ()
    facts = root.raw("facts") or ()
    stated = read_capabilities(root.table("capabilities"))
    profile = Profile(
        name=name,
        title=root.get("title", tables.text, name),
        base_url=root.get("base_url", tables.text, None),
        env_key=root.get("env_key", tables.text, None),
        auth=root.get("auth", tables.one_of("bearer", "api-key", "none"), "bearer"),
        price_provider=root.get("price_provider", tables.text, None),
        capabilities=Capabilities(**stated),
        models=tuple(pair for i, row in enumerate(rows) for pair in _model_rows(row, i, problems)),
        facts=tuple(_fact(row, i, problems) for i, row in enumerate(facts)),
        quirks=root.get("quirks", tables.strings, ()),
        hosts=root.get("hosts", tables.strings, ()),
        stated=frozenset(stated),
    )
    root.finish()
    if problems:
        raise ConfigError(problems, f"providers/{name}.toml")
    return profile


def _model_rows(
    row: Any, index: int, problems: list[str]
) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    data = dict(row) if isinstance(row, Mapping) else {}
    match = data.pop("match", None)
    patterns = (match,) if isinstance(match, str) else match
    table = tables.Table(data, (f"models[{index}]",), problems)
    try:
        patterns = tables.strings(patterns)
    except tables.Expected:
        table.problem("expected a pattern of model names, or a list of them", "match")
        patterns = ()
    overrides = read_capabilities(table)
    return tuple((pattern, overrides) for pattern in patterns)


def _fact(row: Any, index: int, problems: list[str]) -> Fact:
    table = tables.Table(row, (f"facts[{index}]",), problems)
    checked = table.raw("checked")
    if not isinstance(checked, date):
        table.problem(f"expected a date, got {tables.show(checked)}", "checked")
    about = table.get("fields", tables.strings, ())
    known = {*CAPABILITY_READERS, *(f.name for f in fields(Profile))}
    for name in about:
        if name not in known:
            table.problem(f"unknown field {name!r}{tables.suggest(name, known)}", "fields")
    fact = Fact(
        fields=about,
        source=table.get("source", tables.text, ""),
        kind=table.get("kind", tables.one_of(*FACT_KINDS), ""),
        checked=checked.isoformat() if isinstance(checked, date) else "",
    )
    table.finish()
    return fact


class HasCapabilities(Protocol):
    """What :func:`capabilities_for` needs of a provider's config."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """Overrides over the profile."""


def capabilities_for(
    profile: Profile, provider: HasCapabilities | None, model: str
) -> Capabilities:
    """What ``model`` can do at a provider: the profile, its rows for the model, the config's word.

    Later ones win. :class:`ConfigError` for an override that is no capability or has a wrong value.
    """
    laid: dict[str, Any] = {}
    for pattern, overrides in profile.models:
        if fnmatchcase(model.lower(), pattern.lower()):
            laid |= overrides
    if provider is not None and provider.capabilities:
        problems: list[str] = []
        laid |= read_capabilities(tables.Table(provider.capabilities, ("capabilities",), problems))
        if problems:
            raise ConfigError(problems)
    return replace(profile.capabilities, **laid) if laid else profile.capabilities


@cache
def profile_at(base_url: str) -> str:
    """The name of the profile whose own address ``base_url`` is, else ``generic``.

    Where several live at one host, the one whose path fits best (``/beta``, say).
    """
    url = urlsplit(base_url)
    # Reading all files takes 3 ms, parsing them 40: parse those that name the host.
    named = [
        n for n in profile_names() if (url.hostname or "/") in bundled_data.read("providers", n)
    ]
    owners = [profile for profile in map(load_profile, named) if profile.owns(base_url)]

    def fit(profile: Profile) -> int:
        own = urlsplit(profile.base_url or "").path
        return len(own) if url.path == own or url.path.startswith(f"{own}/") else -1

    return max(owners, key=fit).name if owners else "generic"


_PORTS = {"http": 80, "https": 443}


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None

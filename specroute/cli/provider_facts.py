"""A profile's facts as rows of text: for the terminal and for docs/providers.md.

Knows wording and order; deliberately nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby
from typing import Any

from specroute.cli.tables import markdown_table
from specroute.profiles import Capabilities, Profile

OVERVIEW = ("profile", "base_url", "env_key", "scoring", "prefill", "prediction", "logprobs")
_ADDRESS = ("base_url", "hosts", "env_key", "auth", "price_provider")
_NO_ADDRESS = "your own"

_INTRO = """\
# Providers

This page is made from `providers/*.toml` by `specroute providers --markdown`; change it there.

A profile holds what servers of one kind can do. It is chosen by `profile = "…"` in a provider's
table, by the table's name, or by the address that `base_url` shares with a profile. What a profile
doesn't know is **?**: such a capability is not used until the config says otherwise
(`capabilities = { … }`) or the server has shown it.

Every value has a dated source. Kinds: *source* was read in code, *docs* stands in the vendor's
documentation, *issue* was reported by users, *measured* was tried, *unknown* was looked for and
not found.

- **scoring**: dialects that give the log-probabilities of text that is sent, best first. `echo` is
  the one that specroute uses so far.
- **prefill**: how the beginning of an answer is handed to the server.
- **prediction**: whether predicted outputs are taken.
- **logprobs**: largest `top_logprobs` on chat.
"""


def overview(profile: Profile, code: str = "") -> tuple[str, ...]:
    """One row: what decides how a provider can be used. ``code`` quotes names."""
    can = profile.capabilities
    some = [overrides for _, overrides in profile.models]

    def cell(name: str) -> str:
        shown = _value(getattr(can, name), code, name in profile.stated)
        if any(name in overrides for overrides in some):
            by_model = {_value(o[name], code, True) for o in some if name in o}
            shown = "; ".join([shown, *(f"{v} on some models" for v in sorted(by_model))])
        return shown

    return (
        f"{code}{profile.name}{code}",
        f"{code}{profile.base_url}{code}" if profile.base_url else _NO_ADDRESS,
        f"{code}{profile.env_key}{code}" if profile.env_key else "–",
        cell("score"),
        cell("prefill"),
        cell("prediction"),
        cell("chat_max_logprobs"),
    )


def details(profile: Profile, code: str = "") -> Iterator[tuple[str, str, str]]:
    """(field, value, where it is known from): address, capabilities, then rows by model."""
    for name in _ADDRESS:
        value = getattr(profile, name)
        if value not in (None, ()):
            yield f"{code}{name}{code}", _value(value, code), _sources(profile, name)
    defaults = Capabilities()
    for field in fields(Capabilities):
        value = getattr(profile.capabilities, field.name)
        sources = _sources(profile, field.name)
        if value == getattr(defaults, field.name) and not sources:
            continue  # nobody has said anything about it
        stated = field.name in profile.stated
        yield f"{code}{field.name}{code}", _value(value, code, stated), sources
    for _, rows in groupby(profile.models, key=lambda row: id(row[1])):
        some = list(rows)
        models = ", ".join(f"{code}{pattern}{code}" for pattern, _ in some)
        for name, value in some[0][1].items():
            shown = f"{_value(value, code, True)} on {models}"
            yield f"{code}{name}{code}", shown, _sources(profile, name)


def sources(profile: Profile) -> list[str]:
    """``[1] docs, 2026-11-29: …`` for every fact that :func:`details` refers to."""
    return [
        f"[{number}] {fact.kind}, {fact.checked}: {fact.source}"
        for number, fact in enumerate(profile.facts, start=1)
    ]


def markdown(profiles: Iterable[Profile]) -> str:
    """The whole of docs/providers.md."""
    profiles = list(profiles)
    parts = [_INTRO, markdown_table(OVERVIEW, [overview(p, "`") for p in profiles])]
    for profile in profiles:
        parts.append(f"\n## {profile.title}\n\nProfile `{profile.name}`.\n")
        parts.append(markdown_table(("field", "value", "known from"), details(profile, "`")))
        parts.append("\n" + "  \n".join(sources(profile)))
        if profile.quirks:
            parts.append("\n" + "\n".join(f"- {quirk}" for quirk in profile.quirks))
    return "\n".join(parts) + "\n"


def _sources(profile: Profile, name: str) -> str:
    return ", ".join(
        f"{fact.kind} [{number}]"
        for number, fact in enumerate(profile.facts, start=1)
        if name in fact.fields
    )


def _value(value: Any, code: str, stated: bool = False) -> str:
    if value is None or value == ():
        return "none" if stated else "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(f"{code}{word}{code}" for word in value)
    return f"{code}{value}{code}" if isinstance(value, str) else str(value)

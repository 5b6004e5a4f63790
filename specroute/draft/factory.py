"""From a ``[drafts.<name>]`` table to a drafter. Knows the kinds; loads only the one asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specroute.config import DraftConfig
from specroute.draft.base import Drafter
from specroute.errors import ConfigError

if TYPE_CHECKING:
    from specroute.draft.remote import Sharing
    from specroute.http.client import HttpClient

KINDS = ("local", "ngram", "remote")


def make_drafter(
    config: DraftConfig,
    http: Callable[[str], HttpClient],
    continued: Callable[[Mapping[str, Any], str, str], dict[str, Any]] | None = None,
    sharing: Sharing | None = None,
) -> Drafter:
    """The drafter that ``config`` describes; nothing is loaded or asked yet.

    For remote drafts ``http`` gives the client of a configured provider, and ``continued`` turns a
    chat body into one that goes on after a text in a prefill dialect; without it a remote draft of
    a chat is asked for once, from its start; ``sharing`` lets drafts by ids that leave together
    share a request. The draft's own temperature is the engine's to apply.
    Raises :class:`ConfigError` where the table lacks what its kind needs.
    """
    where = f"drafts.{config.name}"
    if config.kind == "ngram":
        from specroute.draft.ngram import NgramDrafter

        return NgramDrafter(config.name)
    if config.kind not in KINDS:
        raise ConfigError(f"{where}.kind is {config.kind!r}, expected one of {', '.join(KINDS)}")
    if not config.model:
        raise ConfigError(f"{where}.model is missing: a {config.kind} draft needs one")
    if config.kind == "local":
        from specroute.draft.local import LocalDrafter

        return LocalDrafter(
            config.name,
            config.model,
            device=config.device,
            dtype=config.dtype,
            max_memory=config.max_memory,
            min_probability=config.min_probability,
        )
    if not config.provider:
        raise ConfigError(f"{where}.provider is missing: a remote draft needs one")
    from specroute.draft.remote import remote_drafter

    provider = http(config.provider)
    return remote_drafter(config.name, config.model, provider, continued, sharing)

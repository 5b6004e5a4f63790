"""Who learns together: the same servers, models and drafts; and whose times are alike.

Names of targets and drafts in one config stand for servers and models, and those are what messages
speak of, by their place in a sorted list that all who learn together have.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping

from specroute.config import Config, provider_for
from specroute.measured import Kept

VERSION = 1
"""Of messages and snapshots; newer ones are left alone."""


class Names:
    """Of one config. ``id``: the same for all who learn together; ``host``: for those of them whose
    machine and place in the network are alike."""

    def __init__(self, config: Config, kept: Kept) -> None:
        self.kept = kept
        self.targets = sorted(set(kept.targets.values()))
        self.drafts = sorted(set(kept.drafts.values()))
        self.target_places = _places(self.targets, kept.targets)
        self.draft_places = _places(self.drafts, kept.drafts)
        remote = {d.name for d in config.drafts.values() if d.kind == "remote"}
        self.remote = frozenset(kept.drafts[name] for name in remote)
        """Drafts whose times are a server's, not this machine's."""
        self.host = _digest(config.store.host or socket.gethostname())
        self.id = _digest(json.dumps(_identity(config, kept), sort_keys=True, default=str))

    def targets_at(self, place: int) -> list[str]:
        """All names that this config has for a target. ``IndexError`` for one it hasn't."""
        return _named(self.kept.targets, self.targets, place)

    def drafts_at(self, place: int) -> list[str]:
        """The same of a draft."""
        return _named(self.kept.drafts, self.drafts, place)


def _identity(config: Config, kept: Kept) -> list[object]:
    """What has to be the same for figures to mean the same: servers, models and how they are spoken
    to; drafts and how they are run. Prices, limits, keys, policies and names don't matter."""
    servers = sorted(
        {
            (kept.targets[str(ref)], provider.profile, json.dumps(dict(provider.capabilities)))
            for model in config.models.values()
            for ref in model.targets
            for provider in (provider_for(config, ref.provider),)
        }
    )
    return [servers, sorted(set(kept.drafts.values()))]


def _places(names: list[str], kept: Mapping[str, str]) -> dict[str, int]:
    place = {name: i for i, name in enumerate(names)}
    return {name: place[key] for name, key in kept.items()}


def _named(kept: Mapping[str, str], names: list[str], place: int) -> list[str]:
    if place < 0:
        raise IndexError(place)
    wanted = names[place]
    return [name for name, key in kept.items() if key == wanted]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

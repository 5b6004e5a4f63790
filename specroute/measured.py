"""What was measured, kept between runs: a JSON file in the user's cache folder, beside the probes.

Knows the file and under which names a config's targets and drafts are kept: by server and model, so
that another config (or a renamed provider) finds its own and nobody else's. ``SPECROUTE_CACHE_DIR``
names another folder; empty, nothing is kept or read. A file that can't be read is left aside, with
the reason in the log.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from math import isfinite
from pathlib import Path
from typing import Any

from specroute import probed
from specroute.config import Config, DraftConfig, provider_for
from specroute.measure import Measurements
from specroute.measure.dump import dump, load, merged

log = logging.getLogger("specroute")

FILE = "measurements.json"


class Kept:
    """A config's measurements between runs."""

    def __init__(self, config: Config) -> None:
        self.targets: dict[str, str] = {}
        """``provider:model`` → what it is kept under,"""
        self.drafts: dict[str, str] = {"caller": "caller"}
        """and the same of drafts."""
        for model in config.models.values():
            for ref in model.targets:
                provider = provider_for(config, ref.provider)
                self.targets[str(ref)] = probed.server_key(provider.base_url, ref.model)
        for draft in config.drafts.values():
            self.drafts[draft.name] = _draft_key(config, draft)

    @property
    def path(self) -> Path | None:
        """The file; ``None``: nothing is kept."""
        folder = probed.folder()
        return None if folder is None else folder / FILE

    def load(self, into: Measurements) -> int:
        """Take over what was kept; how many figures there were for this config."""
        data = self._read()
        if data is None:
            return 0
        fresh = Measurements()
        try:
            load(fresh, data, self.targets, self.drafts, time.time())
            # Only a file that is whole is taken over.
            return load(into, data, self.targets, self.drafts, time.time())
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            log.warning("%s is not used: %s: %s", self.path, type(error).__name__, error)
            return 0

    def loaded(self) -> Measurements:
        """What was kept, or nothing yet."""
        found = Measurements()
        self.load(found)
        return found

    def handed_over(self, before: Kept, seen: Measurements) -> Measurements:
        """What was measured under another config, as far as it is of the same servers and drafts;
        the very same object where nothing of those has changed."""
        if (before.targets, before.drafts) == (self.targets, self.drafts):
            return seen
        found = Measurements()
        load(found, before.collect(seen), self.targets, self.drafts, time.time())
        return found

    def save(self, seen: Measurements) -> Path | None:
        """Keep what was measured; the file, or ``None`` where there was nothing to keep."""
        return self.write(self.collect(seen))

    def collect(self, seen: Measurements) -> dict[str, Any]:
        """What there is to keep, as it is now."""
        return dump(seen, self.targets, self.drafts)

    def write(self, own: dict[str, Any]) -> Path | None:
        """Keep it beside what others have kept meanwhile: written whole or not at all, in any
        thread. What can't be written is logged."""
        path = self.path
        if path is None or not own["entries"]:
            return None
        kept = self._read() or {}
        try:
            own = merged(own, kept, time.time())
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            log.warning("%s is replaced: %s: %s", path, type(error).__name__, error)
        partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(own, separators=(",", ":")), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.warning("measurements could not be kept in %s: %s", path, error)
            return None
        return path

    def _read(self) -> dict[str, Any] | None:
        path = self.path
        if path is None or not path.exists():
            return None
        try:
            found = json.loads(
                path.read_text(encoding="utf-8"), parse_constant=_no_number, parse_float=_finite
            )
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            log.warning("%s is not used: %s", path, error)
            return None
        return found


def _draft_key(config: Config, draft: DraftConfig) -> str:
    """What is drafted where and how; of the settings only those that differ from the usual."""
    where = "" if draft.provider is None else provider_for(config, draft.provider).base_url
    named = [draft.kind, where, draft.model]
    named += [setting for setting in (draft.device, draft.dtype) if setting != "auto"]
    if draft.temperature is not None:
        named.append(f"T={draft.temperature:g}")
    if draft.min_probability:
        named.append(f"p>={draft.min_probability:g}")
    return " ".join(filter(None, named))


def _finite(text: str) -> float:
    """Nor may a number that is too large for one be infinite."""
    found = float(text)
    return found if isfinite(found) else _no_number(text)


def _no_number(name: str) -> float:
    """NaN would spread from one figure to all that is measured later."""
    raise ValueError(f"{name} is no figure")

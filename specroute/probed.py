"""What probes found, kept between runs: one JSON file in the user's cache folder.

Keyed by the server's address and the model, with the time. Knows no HTTP and no checks.
``SPECROUTE_CACHE_DIR`` names another folder; empty, nothing is kept or read.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specroute.profiles import Capabilities

MAX_AGE_S = 30 * 24 * 3600.0
"""Findings older than this are not used: servers change."""
MAX_SERVERS = 500
"""Of so many servers' models they are kept, the newest."""


def folder() -> Path | None:
    """Where the file is kept; ``None``: nowhere."""
    named = os.environ.get("SPECROUTE_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    import platformdirs

    return Path(platformdirs.user_cache_dir("specroute", appauthor=False))


def save(base_url: str, model: str, findings: Sequence[Mapping[str, Any]]) -> Path | None:
    """Keep what was found; the file's path, or ``None`` where nothing is kept."""
    where = folder()
    if where is None:
        return None
    where.mkdir(parents=True, exist_ok=True)
    path = where / "probes.json"
    known = _read(path)
    known[server_key(base_url, model)] = {
        "at": time.time(),
        "findings": [dict(f) for f in findings],
    }
    newest = sorted(known, key=lambda key: _at(known[key]), reverse=True)[:MAX_SERVERS]
    known = {key: known[key] for key in newest}
    partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.partial")
    partial.write_text(json.dumps(known, ensure_ascii=False, indent=1), encoding="utf-8")
    partial.replace(path)
    return path


def load(base_url: str, model: str) -> tuple[list[dict[str, Any]], float] | None:
    """(findings, their age in seconds), ``None`` if there are none that are young enough."""
    where = folder()
    if where is None:
        return None
    entry = _read(where / "probes.json").get(server_key(base_url, model))
    if not isinstance(entry, dict) or not isinstance(entry.get("findings"), list):
        return None
    age = time.time() - _at(entry)
    return (entry["findings"], age) if age <= MAX_AGE_S else None


def overlaid(capabilities: Capabilities, seen: Mapping[str, Any]) -> Capabilities:
    """``capabilities`` with what was seen laid over; ``None`` and foreign names are left out."""
    known = {k: v for k, v in seen.items() if v is not None and k in _FIELDS}
    if isinstance(known.get("score"), list):
        known["score"] = tuple(known["score"])
    if known.get("prefill") == "none":
        known["prefill"] = None
    return replace(capabilities, **known)


def refined(
    capabilities: Capabilities, base_url: str, model: str, stated: Collection[str]
) -> Capabilities:
    """``capabilities`` by the kept probe of that server and model, if there is one; fields that
    the config has ``stated`` stay as they are."""
    kept = load(base_url, model)
    if kept is None:
        return capabilities
    seen = {f.get("field", ""): f.get("value") for f in kept[0]}
    return overlaid(capabilities, {k: v for k, v in seen.items() if k not in stated})


def _at(entry: Any) -> float:
    """When it was found; long ago where that can't be read."""
    at = entry.get("at") if isinstance(entry, dict) else None
    return at if isinstance(at, int | float) else 0.0


_FIELDS = Capabilities.__dataclass_fields__


def server_key(base_url: str, model: str) -> str:
    """What findings are kept under: the server's address and the model."""
    parts = urlsplit(base_url)
    return f"{parts.hostname}:{parts.port or parts.scheme}{parts.path.rstrip('/')} {model}"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # Nothing kept yet, or a file that is none: a new one is written.
    return found if isinstance(found, dict) else {}

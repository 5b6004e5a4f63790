"""What of the machine's environment must not reach a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

NAMES = (
    "OPENAI_API_KEY",
    "OPENAI_ADMIN_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "OPENAI_CUSTOM_HEADERS",
    "SPECROUTE_CONFIG",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)


def clean(monkeypatch: pytest.MonkeyPatch, folder: Path, keys: Mapping[str, str]) -> None:
    """No key, address or config of the machine is seen: ``keys`` are, and ``folder`` is where the
    test runs."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "xdg"))
    monkeypatch.chdir(folder)

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.world import KEYS
from tests.support.environment import clean


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, address or config of the machine reaches a test; its two providers have keys."""
    clean(monkeypatch, tmp_path, KEYS)

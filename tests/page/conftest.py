"""A headless browser, where this machine has one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture
async def browser() -> AsyncIterator[object]:
    """Chromium under playwright; skipped where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(BROWSERS)})")
    playwright = pytest.importorskip("playwright.async_api")
    async with playwright.async_playwright() as driver:
        # As root, as in many containers, its sandbox can't be had; it sees loopback alone.
        made = await driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        await made.close()

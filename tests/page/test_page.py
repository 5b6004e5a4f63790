"""The demo's page, in a real browser: grey while it is drafted, black once it is certain."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from playwright.async_api import expect

from specroute import AsyncSpecRoute
from specroute.cli.page.server import Page, served
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, script
from tests.engine.test_exits import quiet
from tests.provisional.test_speculate import PLAIN

pytestmark = pytest.mark.alone

DRAFT = TEXT.replace("; one, two, six. The", "; one, two, four. The")
GREY, BLACK = "rgb(154, 154, 154)", "rgb(0, 0, 0)"

RECORD = """() => {
  window.seen = [];
  const root = document.querySelector("#speculate .screen");
  const look = () => window.seen.push([
    root.querySelector(".committed").textContent,
    root.querySelector(".provisional").textContent,
  ]);
  new MutationObserver(look).observe(root, {childList: true, characterData: true, subtree: true});
}"""


@asynccontextmanager
async def page_of(
    target_pace: str = "ttft=700ms,tpot=8ms", draft_pace: str = "tpot=2ms", **options: Any
) -> AsyncIterator[tuple[Page, str, ReferenceServer]]:
    """The page over a slow target and a quick remote draft that is wrong in one place."""
    with (
        ReferenceServer(script(), pace=target_pace, **options) as slow,
        ReferenceServer(script(DRAFT), pace=draft_pace) as quick,
    ):
        lab = {"profile": "reference", "base_url": slow.base_url, "capabilities": {"score": []}}
        config = {
            "version": 1,
            "providers": {
                "lab": lab,
                "small": {"profile": "reference", "base_url": quick.base_url},
            },
            "drafts": {"mini": {"kind": "remote", "provider": "small", "model": "chain"}},
            "models": {"m": {"targets": ["lab:chain"], "drafts": ["mini"], "policy": PLAIN}},
        }
        async with AsyncSpecRoute(config=config) as client:
            page = Page(client, client, "m", 'Where is "it" & why?')
            async with served(page) as address:
                yield page, address, slow


async def test_grey_text_turns_black(browser: Any) -> None:
    """The draft is on the screen long before the plain stream, is corrected where it was wrong, and
    ends as the plain answer; nothing outside this machine is asked for."""
    async with page_of() as (_, address, _):
        tab = await browser.new_page()
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        await tab.goto(address)
        assert await tab.input_value("#prompt") == 'Where is "it" & why?'
        await tab.evaluate(RECORD)
        await tab.click("#go")
        grey = tab.locator("#speculate .provisional")
        await expect(grey).to_have_text(re.compile(".{10,}"))
        assert await tab.text_content("#speculate .committed") == ""
        assert await tab.text_content("#plain .committed") == ""
        assert await grey.evaluate("e => getComputedStyle(e).color") == GREY
        for pane in ("speculate", "plain"):
            await tab.wait_for_selector(f"#{pane}[data-state=done]")
            assert await tab.text_content(f"#{pane} .committed") == TEXT
            assert await tab.text_content(f"#{pane} .provisional") == ""
        black = tab.locator("#speculate .committed")
        assert await black.evaluate("e => getComputedStyle(e).color") == BLACK
        first = [
            int(await tab.get_attribute(f"#{p}", "data-first-ms")) for p in ("speculate", "plain")
        ]
        assert first[0] < 0.4 * first[1]
        seen = await tab.evaluate("window.seen")
        committed = [c for c, _ in seen]
        assert all(b.startswith(a) for a, b in pairwise(committed))
        assert any("two, four" in c + p for c, p in seen)  # it was wrong, and was corrected
        assert await tab.is_enabled("#go")
        assert said == []
        assert all(url.startswith(address) for url in asked)
        await tab.close()


async def test_an_error_is_shown_and_the_page_goes_on(browser: Any) -> None:
    """The provider's own words, in both panes."""
    async with page_of(api_key="right") as (_, address, _):
        tab = await browser.new_page()
        await tab.goto(address)
        await tab.click("#go")
        for pane in ("speculate", "plain"):
            await tab.wait_for_selector(f"#{pane}[data-state=error]")
            assert "401" in (await tab.text_content(f"#{pane} .times") or "")
        assert await tab.is_enabled("#go")
        await tab.close()


async def test_closing_the_tab_ends_the_calls_behind_it(browser: Any) -> None:
    """In the middle of the draft."""
    async with page_of("ttft=60s") as (_, address, slow):
        tab = await browser.new_page()
        await tab.goto(address)
        await tab.click("#go")
        await expect(tab.locator("#speculate .provisional")).to_have_text(re.compile(".{3,}"))
        await tab.close()
        await quiet(slow, within=2.0)


async def test_only_this_page_is_answered() -> None:
    """Another site in the same browser can neither read the token nor guess it, nor name itself."""
    async with page_of() as (page, address, slow), httpx2.AsyncClient() as http:
        answer = await http.get(address)
        assert answer.status_code == 200
        assert page.token in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        query = {"way": "plain", "prompt": "go"}
        assert (await http.get(address + "events", params=query)).status_code == 403
        wrong = {**query, "token": "guess"}
        assert (await http.get(address + "events", params=wrong)).status_code == 403
        other = await http.get(address, headers={"host": "evil.example"})
        assert other.status_code == 400
        bad = {"way": "up", "prompt": "go", "token": page.token}
        assert (await http.get(address + "events", params=bad)).status_code == 400
        assert slow.log == []


def test_the_page_is_whole() -> None:
    """Nothing is loaded from elsewhere."""
    page = Page(None, None, "m", "<b>")  # type: ignore[arg-type]
    text = page.html().replace(page.token, "")  # Random: it may hold anything.
    assert "http://" not in text and "https://" not in text
    assert "&lt;b&gt;" in text
    assert "__" not in text


async def test_a_taken_port_is_an_error() -> None:
    """Said at once."""
    async with page_of() as (page, address, _):
        taken = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError):
            async with served(page, taken):
                pass

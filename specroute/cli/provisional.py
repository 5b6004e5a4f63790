"""The demo of provisional text: in the terminal, or as a page in a browser.

Knows what stands on the screen; ``demo`` knows the target and the client's config.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specroute.cli.demo_plan import Plan, config, target

if TYPE_CHECKING:
    from rich.console import Console

    from specroute import AsyncSpecRoute

PACE = "ttft=1800ms,tpot=40ms,rtt=10ms,prefill=10000"
"""A large hosted model under load: something else has the time until its first token."""
CLASS = "customer-service"
SEED = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """One prompt, both ways. Seconds to the first text on the screen and to the last."""

    plain: tuple[float, float]
    provisional: tuple[float, float]
    identical: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "plain": {"first_text_s": self.plain[0], "seconds": self.plain[1]},
            "speculate": {
                "first_text_s": self.provisional[0],
                "seconds": self.provisional[1],
            },
            "identical": self.identical,
        }


@asynccontextmanager
async def _clients(
    plan: Plan, console: Console
) -> AsyncIterator[tuple[AsyncSpecRoute, AsyncSpecRoute]]:
    """(the one that speculates, one whose calls are plain)."""
    from specroute import AsyncSpecRoute

    with target(plan, console) as (base_url, model):
        async with AsyncSpecRoute(config=config(plan, base_url, model)) as client:
            if plan.paced:
                import torch

                torch.set_num_threads(1)
            with console.status("loading the draft, calibrating the target …"):
                for warning in await client.warm_up():
                    console.print(f"note: {warning}", markup=False)
            yield client, client.with_options(policy={"preset": "fixed", "method": "plain"})


# --- in the terminal ------------------------------------------------------------------------------


async def run(plan: Plan, console: Console) -> list[Seen]:
    """Answer the prompts, grey first, then black; a line a prompt."""
    from specroute.reference import corpus

    found: list[Seen] = []
    async with _clients(plan, console) as (client, plain):
        for messages in corpus.held_out(CLASS, plan.prompts, SEED):
            create = {
                "model": "demo",
                "messages": list(messages),
                "temperature": 0,
                "max_tokens": plan.max_tokens,
            }
            console.print(f"\n[bold]{messages[-1]['content']}[/bold]")
            text, *speculated = await _show(client, create, console)
            same, *streamed = await _time(plain, create)
            seen = Seen((streamed[0], streamed[1]), (speculated[0], speculated[1]), text == same)
            found.append(seen)
            console.print(
                f"[dim]first text after {seen.provisional[0]:.2f} s, whole answer after "
                f"{seen.provisional[1]:.2f} s; the plain stream: {seen.plain[0]:.2f} s and "
                f"{seen.plain[1]:.2f} s[/dim]"
            )
    before = statistics.median(s.plain[0] for s in found)
    after = statistics.median(s.provisional[0] for s in found)
    identical = sum(s.identical for s in found)
    console.print(
        f"\nmedian first text: {after:.2f} s, {1 - after / before:.0%} earlier than the plain "
        f"stream's {before:.2f} s; {identical} of {len(found)} answers identical"
    )
    if plan.paced:
        console.print(f"The target's pace is simulated ({plan.pace}); the models are tiny toys.")
    return found


async def _show(
    client: AsyncSpecRoute, create: dict[str, Any], console: Console
) -> tuple[str, float, float]:
    from rich.live import Live
    from rich.text import Text

    from specroute import Commit, Done, Provisional, Rollback

    committed = provisional = ""
    started, first = time.perf_counter(), None
    with Live(console=console, refresh_per_second=30, transient=False) as live:
        async for event in client.speculate(**create):
            match event:
                case Provisional(text):
                    provisional += text
                case Rollback(n_chars):
                    provisional = provisional[:-n_chars]
                case Commit(text):
                    committed += text
                    provisional = provisional[len(text) :]
                case Done():
                    pass
            if first is None and (committed or provisional):
                first = time.perf_counter() - started
            live.update(Text.assemble(committed, (provisional, "bright_black")))
    if not console.is_terminal:
        console.print()  # On one, the screen's own end is a line's end.
    total = time.perf_counter() - started
    return committed, first if first is not None else total, total


async def _time(client: AsyncSpecRoute, create: dict[str, Any]) -> tuple[str, float, float]:
    text, started, first = "", time.perf_counter(), None
    async for chunk in await client.chat.completions.create(**create, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.perf_counter() - started
            text += chunk.choices[0].delta.content
    total = time.perf_counter() - started
    return text, first if first is not None else total, total


# --- in a browser ---------------------------------------------------------------------------------


async def serve(plan: Plan, port: int, console: Console) -> None:
    """Serve the page until interrupted."""
    from specroute.cli.page.server import Page, served
    from specroute.reference import corpus

    messages = corpus.held_out(CLASS, 1, SEED)[0]
    system = next((m["content"] for m in messages if m["role"] == "system"), None)
    about = "Both panes ask the same model."
    if plan.paced:
        about += f" Its pace is simulated ({plan.pace}), and it is a tiny toy."
    async with _clients(plan, console) as (client, plain):
        page = Page(
            client,
            plain,
            "demo",
            messages[-1]["content"],
            about,
            system if plan.paced else None,
            plan.max_tokens,
        )
        async with served(page, port) as address:
            console.print(f"listening on {address}  (Ctrl-C ends it)", markup=False)
            await asyncio.Event().wait()

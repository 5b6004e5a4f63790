"""``specroute demo``: plain and speculative side by side, on the bundled models or your server.

Knows the options, what runs and the exit status; the timing is ``comparison``'s, the table
``demo_table``'s.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from specroute.cli import demo_table
from specroute.cli import provisional as provisional_text
from specroute.cli.demo_plan import PACE, Plan, Side, config, key_of, sides, target
from specroute.cli.demo_table import Outcome

if TYPE_CHECKING:
    from rich.console import Console

    from specroute.comparison import Messages

HELD_OUT_SEED = 1


def demo(
    base_url: Annotated[
        str | None, typer.Option(help="Your own target instead of the paced reference server.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at --base-url.")] = None,
    env_key: Annotated[
        str | None, typer.Option(help="The NAME of the variable that holds the key.")
    ] = None,
    profile: Annotated[
        str,
        typer.Option(help="What the server at --base-url is (see `specroute providers`)."),
    ] = "generic",
    draft: Annotated[
        str | None,
        typer.Option(help="A model folder or hub id to draft with, or 'ngram' [bundled draft]."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="A preset's name, or method:K for 'fixed', such as score:6 [balanced; "
            "for provisional text plain:0, a target that shows nothing]."
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each class.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 100,
    pace: Annotated[
        str | None, typer.Option(help=f"The reference server's simulated pace [{PACE}].")
    ] = None,
    provisional: Annotated[
        bool, typer.Option("--provisional", help="Show provisional text, grey until it is certain.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="The same as a page in a browser, on this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 is any.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Run held-out prompts plain and speculatively and print both, side by side."""
    if base_url is not None and model is None:
        raise typer.BadParameter("--base-url needs --model, the model's name there")
    if port and not page:
        raise typer.BadParameter("--port is the page's: add --page")
    if pace is None:
        pace = provisional_text.PACE if provisional or page else PACE
    if policy is None:
        policy = "plain:0" if provisional or page else "balanced"
    if base_url is None:  # A server of this run's: what is learned of it is of no use later.
        os.environ["SPECROUTE_CACHE_DIR"] = ""
    plan = Plan(base_url, model, env_key, profile, draft, policy, prompts, max_tokens, pace)
    if provisional or page:
        sys.exit(_provisional(plan, page, port, as_json))
    sys.exit(asyncio.run(_run(plan, as_json)))


def _provisional(plan: Plan, page: bool, port: int, as_json: bool) -> int:
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    if page:
        try:
            asyncio.run(provisional_text.serve(plan, port, console))
        except KeyboardInterrupt:
            return 0
        except OSError as error:
            console.print(f"specroute: port {port} can't be had: {error}", markup=False)
            return 2
    found = asyncio.run(provisional_text.run(plan, console))
    if as_json:
        print(json.dumps([seen.as_dict() for seen in found], indent=2))
    return 0 if all(seen.identical for seen in found) else 1


async def _run(plan: Plan, as_json: bool) -> int:
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    clients = sides(plan)
    with target(plan, console) as (base_url, model):
        outcome = await _measure(plan, clients, base_url, model, console)
    if as_json:
        print(json.dumps(demo_table.as_json(plan, clients, outcome), ensure_ascii=False, indent=2))
    else:
        demo_table.show(plan, clients, outcome, console)
    return 0 if outcome.lossless else 1


async def _measure(
    plan: Plan, clients: Mapping[str, Side], base_url: str, model: str, console: Console
) -> Outcome:
    import openai

    from specroute import AsyncSpecRoute
    from specroute.comparison import Traffic, compare_sides, stream
    from specroute.reference import corpus

    key = key_of(plan)
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(openai.AsyncOpenAI(base_url=base_url, api_key=key))
        speculative = {
            name: await stack.enter_async_context(
                AsyncSpecRoute(config=config(plan, base_url, model, side.prices))
            )
            for name, side in clients.items()
        }
        if plan.paced:
            import torch

            torch.set_num_threads(1)
        with console.status("loading the draft, calibrating the target …"):
            for client in speculative.values():
                outcome.warnings += await client.warm_up()
            # Neither side shall pay for the target's cold start.
            await stream(plain, model, corpus.held_out(corpus.TRAFFIC[0], 1)[0], 8)
        for name in corpus.TRAFFIC:
            found = outcome.classes[name] = {side: Traffic(name) for side in clients}
            held_out: list[Messages] = list(corpus.held_out(name, plan.prompts, HELD_OUT_SEED))
            screen = Screen(console, name, len(held_out))
            async for pairs in compare_sides(
                plain, speculative, (model, "demo"), held_out, plan.max_tokens, screen.text
            ):
                for side, pair in pairs.items():
                    found[side].pairs.append(pair)
                    took = pair.plain.seconds
                screen.done({"plain": took, **{n: p.speculative.seconds for n, p in pairs.items()}})
            screen.end()
    return outcome


class Screen:
    """Streams the first prompt's answers as they come, then one line a prompt."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._done = 0
        self._which = ""

    def text(self, which: str, text: str) -> None:
        if self._done:
            return
        if which != self._which:
            self._which = which
            self._console.print(f"\n[bold]{self._name}[/bold], {which}:")
        self._console.print(text, end="", markup=False, soft_wrap=True)
        self._console.file.flush()

    def done(self, seconds: Mapping[str, float]) -> None:
        """One prompt is answered by everybody, in so many seconds."""
        self._done += 1
        if self._done == 1:
            self._console.print()
        each = ", ".join(f"{name} {took:.2f} s" for name, took in seconds.items())
        self._console.print(f"[dim]{self._name} {self._done}/{self._total}: {each}[/dim]")

    def end(self) -> None:
        self._console.print()

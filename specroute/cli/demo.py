"""``specroute demo``: plain and speculative side by side, on the bundled models or your server.

Knows the options, the table and the exit status; the timing is ``comparison``'s.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specroute.cli import provisional as provisional_text
from specroute.cli.demo_plan import PACE, PRICES, Plan, config, key_of, target

if TYPE_CHECKING:
    from rich.console import Console

    from specroute.comparison import Messages, Traffic

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
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each class.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 160,
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


@dataclass(slots=True)
class Outcome:
    """What the demo found."""

    traffics: list[Traffic] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def lossless(self) -> bool:
        return all(pair.agrees for traffic in self.traffics for pair in traffic.pairs)


async def _run(plan: Plan, as_json: bool) -> int:
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    with target(plan, console) as (base_url, model):
        outcome = await _measure(plan, base_url, model, console)
    if as_json:
        print(json.dumps(_as_json(plan, outcome), ensure_ascii=False, indent=2))
    else:
        _show(plan, outcome, console)
    return 0 if outcome.lossless else 1


async def _measure(plan: Plan, base_url: str, model: str, console: Console) -> Outcome:
    import openai

    from specroute import AsyncSpecRoute
    from specroute.comparison import Traffic, compare, stream
    from specroute.reference import corpus

    key = key_of(plan)
    outcome = Outcome()
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=key) as plain,
        AsyncSpecRoute(config=config(plan, base_url, model)) as speculative,
    ):
        if plan.paced:
            import torch

            torch.set_num_threads(1)
        with console.status("loading the draft, calibrating the target …"):
            outcome.warnings += await speculative.warm_up()
            # Neither side shall pay for the target's cold start.
            await stream(plain, model, corpus.held_out(corpus.TRAFFIC[0], 1)[0], 8)
        for name in corpus.TRAFFIC:
            traffic = Traffic(name)
            outcome.traffics.append(traffic)
            held_out: list[Messages] = list(corpus.held_out(name, plan.prompts, HELD_OUT_SEED))
            screen = Screen(console, name, len(held_out))
            async for pair in compare(
                plain, speculative, (model, "demo"), held_out, plan.max_tokens, screen.text
            ):
                traffic.pairs.append(pair)
                screen.done(pair.plain.seconds, pair.speculative.seconds)
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

    def done(self, plain: float, speculative: float) -> None:
        self._done += 1
        if self._done == 1:
            self._console.print()
        self._console.print(
            f"[dim]{self._name} {self._done}/{self._total}: plain {plain:.2f} s, "
            f"speculative {speculative:.2f} s[/dim]"
        )

    def end(self) -> None:
        self._console.print()


def _as_json(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    return {
        "pace": plan.pace if plan.paced else None,
        "simulated": plan.paced,
        "policy": plan.policy,
        "warnings": outcome.warnings,
        "classes": [traffic.as_dict() for traffic in outcome.traffics],
        "lossless": outcome.lossless,
    }


def _show(plan: Plan, outcome: Outcome, console: Console) -> None:
    from rich.table import Table

    table = Table(title="plain AsyncOpenAI against AsyncSpecRoute, greedy", title_justify="left")
    table.add_column("")
    columns: list[list[str]] = []
    for traffic in outcome.traffics:
        table.add_column(f"{traffic.name}\nplain", justify="right")
        table.add_column("\nspeculative", justify="right")
        columns += _columns(plan, traffic)
    for name, *values in zip(ROWS, *columns, strict=True):
        table.add_row(name, *values)
    console.print(table)
    for warning in outcome.warnings:
        console.print(f"note: {warning}", markup=False)
    for traffic in outcome.traffics:
        for i, pair in enumerate(traffic.pairs):
            if not pair.identical:
                why = pair.excuse or "NOT explained by the target's own disagreement"
                console.print(f"{traffic.name} {i + 1} differs: {why}", markup=False)
        (reason,) = [r.plan_reason for r in traffic.reports][-1:]
        console.print(f"{traffic.name}, last plan: {reason}", markup=False)
    if plan.paced:
        console.print(
            f"The target's pace is simulated ({plan.pace}) and the models are tiny toys; dollars "
            f"are at ${PRICES['input']:g}/${PRICES['output']:g} per million input/output tokens."
        )


ROWS = (
    "prompts",
    "TTFT, mean ms",
    "TPOT, ms",
    "total s",
    "tokens",
    "rounds",
    "acceptance",
    "method",
    "exactness",
    "cost $",
    "speed-up",
    "identical",
)


def _columns(plan: Plan, traffic: Traffic) -> list[list[str]]:
    """The plain and the speculative column of one class, in the order of :data:`ROWS`."""
    found = traffic.as_dict()
    a, b = found["plain"], found["speculative"]
    same = sum(pair.identical for pair in traffic.pairs)
    rate = f"{b['accepted'] / b['drafted']:.0%}" if b["drafted"] else "–"
    plain = [str(found["prompts"]), *_figures(a), "–", "–", "plain", "exact"]
    plain += [_dollars(_plain_cost(plan, traffic)), "1.00", "–"]
    fast = ["", *_figures(b), str(b["rounds"]), rate, b["method"], b["exactness"]]
    fast += [_dollars(b["cost_usd"]), f"{found['speedup']:.2f}", f"{same}/{len(traffic.pairs)}"]
    return [plain, fast]


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        f"{row['ttft_s'] * 1e3:.0f}",
        f"{row['tpot_s'] * 1e3:.1f}",
        f"{row['seconds']:.2f}",
        str(row["tokens"]),
    )


def _plain_cost(plan: Plan, traffic: Traffic) -> float | None:
    """What the plain answers cost: the prompts' length is known from the other side's usage."""
    prompts = [r.prompt_tokens for r in traffic.reports]
    if not plan.paced or None in prompts:
        return None
    sent = sum(p for p in prompts if p is not None)
    made = traffic.plain(lambda run: run.tokens)
    return (sent * PRICES["input"] + made * PRICES["output"]) / 1e6


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"

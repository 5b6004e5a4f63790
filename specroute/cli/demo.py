"""``specroute demo``: plain and speculative side by side, on the bundled models or your server.

Knows the options, the table and the exit status; the timing is ``comparison``'s.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from specroute.comparison import Messages, Traffic

PACE = "tpot=40ms,rtt=10ms,prefill=10000"
PRICES = {"input": 3.0, "output": 15.0}
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
        str, typer.Option(help="A preset's name, or method:K for 'fixed', such as score:6.")
    ] = "balanced",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each class.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 160,
    pace: Annotated[str, typer.Option(help="The reference server's simulated pace.")] = PACE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Run held-out prompts plain and speculatively and print both, side by side."""
    if base_url is not None and model is None:
        raise typer.BadParameter("--base-url needs --model, the model's name there")
    plan = Plan(base_url, model, env_key, profile, draft, policy, prompts, max_tokens, pace)
    sys.exit(asyncio.run(_run(plan, as_json)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The options, as read."""

    base_url: str | None
    model: str | None
    env_key: str | None
    profile: str
    draft: str | None
    policy: str
    prompts: int
    max_tokens: int
    pace: str

    @property
    def paced(self) -> bool:
        """Whether the target is our own server at a simulated pace."""
        return self.base_url is None


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
    with _target(plan, console) as (base_url, model):
        outcome = await _measure(plan, base_url, model, console)
    if as_json:
        print(json.dumps(_as_json(plan, outcome), ensure_ascii=False, indent=2))
    else:
        _show(plan, outcome, console)
    return 0 if outcome.lossless else 1


@contextmanager
def _target(plan: Plan, console: Console) -> Iterator[tuple[str, str]]:
    """(base_url, model) of the target; the reference server is started and stopped here."""
    if plan.base_url is not None and plan.model is not None:
        yield plan.base_url, plan.model
        return
    from specroute.reference.bundled import target_dir
    from specroute.reference.running import ReferenceServer

    with console.status("starting the reference server …"):
        server = ReferenceServer(
            target_dir(), pace=plan.pace, names=["target"], process=True, threads=1
        )
        running = server.__enter__()
    try:
        yield running.base_url, "target"
    finally:
        server.__exit__(None, None, None)


def config(plan: Plan, base_url: str, model: str) -> dict[str, Any]:
    """The demo's own config, as an app would write it."""
    provider: dict[str, Any] = {"profile": plan.profile, "base_url": base_url}
    provider["env_key"] = plan.env_key or ""
    if plan.paced:
        provider.update(profile="reference", prices=PRICES)
    drafts: dict[str, Any] = {}
    name = "ngram"
    if plan.draft != "ngram" and (plan.paced or plan.draft is not None):
        from specroute.reference.bundled import draft_dir

        name = "draft"
        drafts[name] = {"kind": "local", "model": plan.draft or str(draft_dir()), "device": "auto"}
    return {
        "version": 1,
        "providers": {"lab": provider},
        "drafts": drafts,
        "models": {
            "demo": {
                "targets": [f"lab:{model}"],
                "drafts": [name],
                "policy": _policy(plan.policy),
            }
        },
    }


def _policy(text: str) -> Any:
    method, colon, k = text.partition(":")
    if not colon:
        return text
    if not k.isdigit():
        raise typer.BadParameter(f"--policy {text!r}: expected a preset or method:K, as score:6")
    return {"preset": "fixed", "method": method, "num_speculative_tokens": int(k)}


async def _measure(plan: Plan, base_url: str, model: str, console: Console) -> Outcome:
    import openai

    from specroute import AsyncSpecRoute
    from specroute.comparison import Traffic, compare, stream
    from specroute.reference import corpus

    key = _key(plan)
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


def _key(plan: Plan) -> str:
    import os

    if plan.env_key is None:
        return "none"
    key = os.environ.get(plan.env_key)
    if not key:
        raise typer.BadParameter(f"--env-key: the variable {plan.env_key} is not set")
    return key


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

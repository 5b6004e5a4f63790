"""``specroute calibrate``: how lenient a cascade may be, from the user's own traffic."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from specroute.acceptance.agreement import Setting, Trial


def calibrate(
    model: Annotated[str, typer.Argument(help="A model of the config, with drafts.")],
    prompts: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help='JSON lines: {"messages": […]} or {"prompt": "…"}, with "answer" where known.',
        ),
    ],
    agreement: Annotated[
        float, typer.Option(min=0.01, max=0.999, help="Wanted share of answers that agree.")
    ] = 0.9,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="That the share is at least that.")
    ] = 0.95,
    rule: Annotated[str, typer.Option(help="ratio or mean_logprob.")] = "ratio",
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 512,
    limit: Annotated[int, typer.Option(min=0, help="Use so many prompts; 0 is all.")] = 0,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The config [looked up].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Choose a lossy rule's setting for a wanted agreement with the target's plain answers.

    Each prompt costs one scoring call, and a plain call where its answer is not in the file. An
    answer agrees where what the rule keeps of the draft is word for word how the target's own
    greedy answer begins.
    """
    from specroute import trials
    from specroute.acceptance.agreement import RULES, loosest, needed, tried
    from specroute.errors import RequestError

    if rule not in RULES:
        raise typer.BadParameter(f"--rule {rule!r}: expected {' or '.join(RULES)}")
    try:
        asked = trials.read(prompts)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error
    asked = asked[:limit] if limit else asked
    found, problems, dollars = asyncio.run(_run(file, model, asked, max_tokens))
    for problem in dict.fromkeys(problems):
        typer.echo(f"{problems.count(problem)} of {len(asked)} left out: {problem}", err=True)
    settings = tried(rule, found, confidence)
    chosen = loosest(settings, agreement)
    policy = None if chosen is None else _policy(rule, chosen)
    if as_json:
        out = {
            "rule": rule,
            "trials": len(found),
            "left_out": len(problems),
            "wanted": agreement,
            "confidence": confidence,
            "cost_usd": dollars,
            "settings": [_setting(each) for each in settings],
            "policy": policy,
        }
        print(json.dumps(out, indent=2))
    else:
        _show(rule, settings, confidence, dollars)
        if policy is not None:
            typer.echo(
                "policy = { " + ", ".join(f"{k} = {_toml(v)}" for k, v in policy.items()) + " }"
            )
        else:
            few = needed(agreement, confidence)
            more = f"; it takes at least {few} prompts" if len(found) < few else ""
            typer.echo(
                f"No setting is sure to agree in {agreement:.0%} of the answers at "
                f"{confidence:.0%} confidence, from {len(found)} prompts{more}.",
                err=True,
            )
    sys.exit(0 if policy is not None else 1)


async def _run(
    file: Path | None, model: str, asked: list[Any], max_tokens: int
) -> tuple[list[Trial], list[str], float | None]:
    from specroute import AsyncSpecRoute, trials

    found: list[Trial] = []
    problems: list[str] = []
    costs: list[float | None] = []
    async with AsyncSpecRoute.from_config(file) as client:
        async for made in trials.trials(client, model, asked, max_tokens):
            costs += [report.cost_usd for report in made.reports]
            if made.trial is not None:
                found.append(made.trial)
            else:
                problems.append(made.problem)
    known = [cost for cost in costs if cost is not None]
    return found, problems, sum(known) if len(known) == len(costs) else None


def _policy(rule: str, chosen: Setting) -> dict[str, Any]:
    key = "tau" if rule == "ratio" else "mean_logprob"
    return {
        "preset": "fixed",
        "method": "cascade",
        "exactness": "heuristic",
        "acceptance": rule,
        key: chosen.value,
        "agreement": int(chosen.at_least * 1000) / 1000,  # Never more than was shown.
    }


def _toml(value: Any) -> str:
    return json.dumps(value)


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "value": setting.value,
        "kept": setting.kept,
        "agreeing": setting.agreeing,
        "trials": setting.trials,
        "at_least": setting.at_least,
    }


def _show(rule: str, settings: list[Setting], confidence: float, dollars: float | None) -> None:
    from specroute.cli.tables import print_table

    rows = [
        (
            f"{each.value:g}",
            f"{each.kept:.0%}",
            f"{each.agreeing}/{each.trials}",
            f"{each.at_least:.1%}",
        )
        for each in settings
    ]
    columns = ("tau" if rule == "ratio" else rule, "kept", "agree", f"at least ({confidence:.0%})")
    print_table(columns, rows, title=f"{rule}: what is kept of the drafts, and how often it agrees")
    if dollars is not None:
        typer.echo(f"The calls for this cost ${dollars:.4f}.")

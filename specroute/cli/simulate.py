"""``specroute simulate``: what policies would have made of recorded or synthetic traffic."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from specroute.policy.base import Policy
    from specroute.simulate.world import World

HEAD = ("policy", "seconds", "against plain", "dollars", "against plain", "speculated", "rounds")


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help='What `record = "traces.jsonl"` wrote; else synthetic.')
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A preset, or a TOML table over one: '{preset = \"cost\", exploration = 0}'. "
            "May be given again."
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Synthetic: acceptance per token.")] = 0.8,
    r_ms: Annotated[float, typer.Option(help="Synthetic: one more request, ms.")] = 30.0,
    tpot_ms: Annotated[float, typer.Option(help="Synthetic: per output token, ms.")] = 40.0,
    out_in: Annotated[float, typer.Option(help="Synthetic: output price over input price.")] = 4.0,
    cached: Annotated[
        float, typer.Option(help="Synthetic: cached price over input price; 0: no cache.")
    ] = 0.1,
    drift: Annotated[str, typer.Option(help="Synthetic: none, step, slow or daily.")] = "none",
    requests: Annotated[int, typer.Option(help="Synthetic: how many.")] = 400,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a trace, or synthetic traffic, against policies in virtual time.

    The policies are the ones that a client uses, and start without knowing anything. Compared with
    plain and with the best fixed plan in hindsight.
    """
    from specroute.cli.tables import print_table

    world = _world(
        trace,
        alpha=alpha,
        r=r_ms / 1e3,
        tpot=tpot_ms / 1e3,
        out_in=out_in,
        cached=cached or None,
        drift=drift,
        requests=requests,
    )
    made = [(name, _policy(name)) for name in policy or ("latency", "balanced", "cost")]
    rows = _rows(world, made)
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2))
        return
    typer.echo(f"{world.requests} requests; drafts: {', '.join(d.name for d in world.drafters)}")
    print_table(HEAD, map(_shown, rows))


def _world(trace: Path | None, **synthetic: Any) -> World:
    from specroute.errors import ConfigError
    from specroute.simulate.scenario import DRIFTS, Scenario
    from specroute.simulate.trace import read_trace
    from specroute.simulate.world import Synthetic

    if trace is not None:
        return read_trace(trace)
    if synthetic["drift"] not in DRIFTS:
        raise ConfigError(
            f"--drift: expected one of {', '.join(DRIFTS)}, got {synthetic['drift']!r}"
        )
    for option, value, most in (
        ("--alpha", synthetic["alpha"], 1.0),
        ("--r-ms", synthetic["r"] * 1e3, inf),
        ("--tpot-ms", synthetic["tpot"] * 1e3, inf),
        ("--out-in", synthetic["out_in"], inf),
        ("--requests", synthetic["requests"], inf),
    ):
        if not 0 < value < most:
            limit = "more than 0" if most == inf else f"between 0 and {most:g}"
            raise ConfigError(f"{option}: expected {limit}, got {value:g}")
    if not 0 <= (synthetic["cached"] or 0.0) <= 1:
        raise ConfigError(f"--cached: expected 0 to 1, got {synthetic['cached']:g}")
    return Synthetic(Scenario(**synthetic))


def _policy(text: str) -> Policy:
    import tomllib

    from specroute.config import parse_policy
    from specroute.errors import ConfigError
    from specroute.policy.make import make_policy

    value: Any = text
    if text.lstrip().startswith("{"):
        try:
            value = tomllib.loads(f"policy = {text}")["policy"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--policy {text!r} is no TOML table: {error}") from error
    return make_policy(parse_policy(value, "--policy"))[0]


def _rows(world: World, made: list[tuple[str, Policy]]) -> list[dict[str, Any]]:
    from specroute.simulate.oracle import best, fixed_plans
    from specroute.simulate.run import run

    plans = fixed_plans(world)
    fastest, _ = best(plans, 0, world.requests)
    cheapest, _ = best(plans, 0, world.requests, dollars=True)
    plain = next(outcome for plan, outcome in plans.items() if plan.k == 0)
    found = [("plain", plain), *((name, run(world, policy)) for name, policy in made)]
    found += [
        (f"best fixed in seconds: {fastest}", plans[fastest]),
        (f"best fixed in dollars: {cheapest}", plans[cheapest]),
    ]
    priced = world.prices(world.targets[0]) is not None
    seconds, dollars = sum(plain.seconds), sum(plain.dollars)
    rows = []
    for name, outcome in found:
        spoken = [method != "plain" for method in outcome.methods]
        rows.append(
            {
                "policy": name,
                "seconds": sum(outcome.seconds) / world.requests,
                "seconds_ratio": sum(outcome.seconds) / seconds,
                "dollars": sum(outcome.dollars) / world.requests if priced else None,
                "dollars_ratio": sum(outcome.dollars) / dollars if priced else None,
                "speculated": sum(spoken) / world.requests if spoken else None,
                "rounds": outcome.rounds / world.requests,
            }
        )
    return rows


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    def figure(key: str, form: str) -> str:
        return "–" if row[key] is None else format(row[key], form)

    return (
        row["policy"],
        figure("seconds", ".2f"),
        figure("seconds_ratio", ".3f"),
        figure("dollars", ".3g"),
        figure("dollars_ratio", ".3f"),
        figure("speculated", ".0%"),
        figure("rounds", ".1f"),
    )

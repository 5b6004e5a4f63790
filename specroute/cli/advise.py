"""``specroute advise``: what to change in a config, by what was measured with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def advise(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The config [looked up].")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-c", help="a.b=value, laid over the config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Say what to change, each piece of advice with the figure behind it."""
    import time
    from dataclasses import asdict

    from specroute import advice, ledger
    from specroute import config as configs
    from specroute.cli.measurements import figures, kept
    from specroute.config import provider_for
    from specroute.profiles import load_profile
    from specroute.types import TargetRef

    loaded = configs.load(file, overrides=override or ())
    seen, _ = kept(file, override or ())
    measured = sum(1 for _ in figures(seen, time.time()))

    def price_of(target: str) -> ledger.Price | None:
        ref = TargetRef.parse(target)
        provider = provider_for(loaded, ref.provider)
        return ledger.price_for(provider, load_profile(provider.profile), ref.model)

    found = advice.advise(seen, loaded, price_of)
    if as_json:
        import json

        typer.echo(json.dumps([asdict(each) for each in found], ensure_ascii=False, indent=2))
        return
    if not measured:
        typer.echo("Nothing was measured yet for the targets of this config: use it first.")
        return
    if not found:
        typer.echo(f"Nothing to change, by {measured} figures.")
    for each in found:
        typer.echo(f"{each.topic}: {each.about}\n  measured: {each.figure}\n  {each.change}\n")

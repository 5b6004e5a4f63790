"""``specroute config``: the effective config, redacted, and where each value came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def config(
    override: Annotated[
        list[str] | None,
        typer.Option("-c", "--config", metavar="A.B=VALUE", help="Lay a value over the file."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read this file instead of looking for one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the effective config, redacted, and where each value came from."""
    from specroute.config import load
    from specroute.config.view import effective, rows

    found = load(file, overrides=override or ())
    if as_json:
        import json

        origins = {key: origin for key, _, origin in rows(found)}
        shown = {"source": found.source, "config": effective(found), "origins": origins}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from specroute.cli.tables import print_table

    print_table(("key", "value", "from"), rows(found), title=f"config from {found.source}")

"""The ``specroute`` command: one file per command, registered here.

Knows names and how errors are shown; each command's own imports happen when it runs, so that
``specroute --help`` is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specroute.cli.advise import advise
from specroute.cli.batch import batch
from specroute.cli.calibrate import calibrate
from specroute.cli.config import config
from specroute.cli.demo import demo
from specroute.cli.measurements import measurements
from specroute.cli.policies import policies
from specroute.cli.probe import probe
from specroute.cli.providers import providers
from specroute.cli.serve import serve
from specroute.cli.simulate import simulate
from specroute.errors import SpecRouteError

app = typer.Typer(
    name="specroute",
    help="Speculative decoding across OpenAI-format APIs.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could show a key.
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(probe)
app.command()(calibrate)
app.command()(batch)
app.command()(serve)
app.command()(config)
app.command()(providers)
app.command()(policies)
app.command()(simulate)
app.command()(measurements)
app.command()(advise)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"specroute {version('specroute')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Speculative decoding across OpenAI-format APIs."""


def main() -> None:
    """Run the command line; specroute's own errors are one message and exit status 2."""
    try:
        app()
    except SpecRouteError as error:
        typer.echo(f"specroute: {error}", err=True)
        sys.exit(2)

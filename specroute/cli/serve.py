"""``specroute serve``: an OpenAI-compatible proxy by a config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Config; without it the usual look-up.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.")] = 8400,
    key_env: Annotated[
        str,
        typer.Option(
            help="Variable that holds the proxy's own keys; a public address needs at least one."
        ),
    ] = "SPECROUTE_PROXY_KEYS",
    max_concurrent: Annotated[
        int, typer.Option(min=1, help="Requests under way at once; further ones get 429.")
    ] = 1000,
    drain: Annotated[
        int,
        typer.Option(
            min=0, help="Seconds that requests under way get after a SIGTERM; then they are cut."
        ),
    ] = 60,
    warm_up: Annotated[
        bool, typer.Option(help="Load drafts and calibrate targets at the start.")
    ] = True,
) -> None:
    """Serve the config's models as an OpenAI-format API, for apps in any language."""
    from specroute.config import load
    from specroute.errors import ConfigError

    config = load(file)
    try:
        from specroute.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the proxy needs the package {error.name!r}: pip install 'specroute[serve]'"
        ) from error
    names = ", ".join(config.models) or "no named models"
    run(
        config,
        host=host,
        port=port,
        key_env=key_env,
        max_concurrent=max_concurrent,
        drain_s=drain,
        warm_up=warm_up,
        ready=lambda url: typer.echo(f"{url} serves {names} ({config.source})", err=True),
    )

"""``specroute policies``: the policy presets and their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

HEAD = ("preset", "parameter", "default", "may be")


def policies(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of docs/configuration.md.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the policy presets, their parameters and defaults."""
    from specroute.cli.tables import markdown_table, print_table

    if as_json:
        import json

        typer.echo(json.dumps(_data(), indent=2))
    elif markdown:
        typer.echo(markdown_table(HEAD, _rows(code="`")))
    else:
        print_table(HEAD, _rows(code=""))


def _rows(code: str) -> Iterator[tuple[str, str, str, str]]:
    import json

    from specroute.presets import load_preset, preset_names

    for name in preset_names():
        preset = load_preset(name)
        for key, value in preset.params.items():
            if key in preset.choices:
                allowed = ", ".join(preset.choices[key])
            else:
                limits = ((preset.at_least, "≥"), (preset.at_most, "≤"))
                allowed = ", ".join(f"{sign} {end[key]:g}" for end, sign in limits if key in end)
            yield (
                f"{code}{name}{code}",
                f"{code}{key}{code}",
                f"{code}{json.dumps(value)}{code}",
                allowed,
            )


def _data() -> dict[str, Any]:
    from specroute.presets import load_preset, preset_names

    return {
        name: {
            "policy": (preset := load_preset(name)).policy,
            "summary": preset.summary,
            "params": dict(preset.params),
        }
        for name in preset_names()
    }

"""``specroute providers``: what each bundled profile knows, as a table, in detail, as Markdown."""

from __future__ import annotations

from typing import Annotated

import typer


def providers(
    name: Annotated[str | None, typer.Argument(help="Show one provider with its facts.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/providers.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is known of each provider, with the source and date of every fact."""
    from specroute.cli import provider_facts as facts
    from specroute.cli.tables import print_table
    from specroute.profiles import load_profile, profile_names

    chosen = [load_profile(name)] if name else [load_profile(each) for each in profile_names()]
    if as_json:
        import json
        from dataclasses import asdict

        shown = [asdict(profile) for profile in chosen]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False, default=sorted))
    elif markdown:
        typer.echo(facts.markdown(chosen), nl=False)
    elif name is None:
        print_table(facts.OVERVIEW, [facts.overview(profile) for profile in chosen])
    else:
        (profile,) = chosen
        print_table(("field", "value", "known from"), facts.details(profile), title=profile.title)
        for line in (*facts.sources(profile), *(f"- {quirk}" for quirk in profile.quirks)):
            typer.echo(line)

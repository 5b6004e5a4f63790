"""``specroute probe PROVIDER:MODEL``: what the profile says beside what the server does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from specroute.config import Config
    from specroute.target.probe import Probed
    from specroute.types import TargetRef


def probe(
    target: Annotated[str, typer.Argument(help="provider:model, as in the config.")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The config [looked up].")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-c", help="a.b=value, laid over the config.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The model's tokenizer, a folder or hub id [the config's].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    keep: Annotated[bool, typer.Option(help="Keep the result and use it over the profile.")] = True,
) -> None:
    """Find out by behaviour what a server can do, and which methods follow from it."""
    from specroute import config as configs
    from specroute.target.checks import ESTIMATE
    from specroute.types import TargetRef

    try:
        ref = TargetRef.parse(target)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    found = configs.find()
    loaded = configs.load(file or found, overrides=override or ())
    if not as_json:
        typer.echo(
            f"Probing {ref}: about {ESTIMATE['calls']} calls, {ESTIMATE['prompt']} prompt tokens "
            f"and {ESTIMATE['completion']} generated ones.",
            err=True,
        )
    asyncio.run(_probe(loaded, ref, tokenizer, as_json, keep))


async def _probe(
    config: Config, ref: TargetRef, tokenizer: str | None, as_json: bool, keep: bool
) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from specroute import probed
    from specroute.book import Book
    from specroute.config import provider_for
    from specroute.http.deadline import Deadline
    from specroute.ledger import booked, price_for
    from specroute.profiles import capabilities_for, load_profile
    from specroute.router import Router
    from specroute.target.checks import CHECKS
    from specroute.target.probe import Probe
    from specroute.target.target import Target
    from specroute.types import Report
    from specroute.vocabulary import load_vocabulary

    provider = provider_for(config, ref.provider)
    profile = load_profile(provider.profile)
    says = capabilities_for(profile, provider, ref.model)
    named = (m.tokenizer for m in config.models.values() if ref in m.targets and m.tokenizer)
    tokenizer = tokenizer or next(named, None)
    vocabularies = [load_vocabulary(tokenizer)] if tokenizer else []
    book = Book()
    console = Console(stderr=True, highlight=False)
    router = Router(config)
    try:
        server = Target(ref, router.http(provider), says, vocabularies[0] if tokenizer else None)
        with console.status("…") as status:
            run = Probe(
                server,
                vocabularies,
                book,
                lambda: Deadline(provider.timeouts),
                lambda name: status.update(f"checking {name} …"),
            )
            seen = await run.run(CHECKS)
    finally:
        await router.aclose()
    kept = None
    if keep:
        # By text alone it can't be told what a client that knows the vocabulary can score with.
        by_ids = bool(seen.get("scores_by_ids"))
        findings = [asdict(f) for f in seen.findings if by_ids or f.field != "score"]
        kept = probed.save(provider.base_url, ref.model, findings)
    spent = booked(
        Report("probe", str(ref)), book.attempts, lambda _: price_for(provider, profile, ref.model)
    )
    follows = methods(seen, says)
    if as_json:
        print(json.dumps(_as_json(ref, seen, says, follows, spent), ensure_ascii=False, indent=2))
        return
    _show(ref, seen, says, follows)
    typer.echo(
        f"{len(book.attempts)} calls, {spent.billed_prompt_tokens} prompt and "
        f"{spent.billed_completion_tokens} generated tokens, "
        + (f"${spent.cost_usd:.5f}" if spent.cost_usd is not None else "price unknown")
    )
    if kept is not None:
        typer.echo(f"Kept in {kept}; used over the profile for 30 days.")


def methods(seen: Probed, says: Any) -> dict[str, str]:
    """Which methods the findings allow, in a few words each."""
    caps = seen.capabilities(says)
    found = {"plain": "yes"}
    if not caps.score:
        found["score"] = "no: prompts are not scored, or not to be trusted"
    elif caps.template is None:
        found["score"] = "yes on /completions; for chats name the model's tokenizer in the config"
    else:
        found["score"] = "yes" if seen.get("scores_by_ids") else "yes, by text (bounded, T = 0)"
    if caps.completions and caps.id_prompts and caps.ids_asked:
        found["prefix"] = "yes, by token ids"
    elif caps.prefill:
        found["prefix"] = f"yes, by prefill ({caps.prefill})"
    else:
        found["prefix"] = "no: no way to continue a given beginning"
    found["predict"] = "yes" if caps.prediction else "no: predictions are not taken, or not counted"
    return found


def _says(says: Any, name: str) -> str:
    if name not in type(says).__dataclass_fields__:
        return ""
    value = getattr(says, name)
    return "unknown" if value is None else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _as_json(
    ref: TargetRef, seen: Probed, says: Any, follows: dict[str, str], spent: Any
) -> dict[str, Any]:
    return {
        "target": str(ref),
        "findings": [
            {
                "field": f.field,
                "profile": _says(says, f.field) or None,
                "seen": f.value,
                "how": f.how,
            }
            for f in seen.findings
        ],
        "methods": follows,
        "spent": {
            "calls": len(spent.attempts),
            "prompt_tokens": spent.billed_prompt_tokens,
            "completion_tokens": spent.billed_completion_tokens,
            "cost_usd": spent.cost_usd,
        },
    }


def _show(ref: TargetRef, seen: Probed, says: Any, follows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{ref}: profile says, probe saw", title_justify="left")
    for column in ("what", "profile says", "probe saw", "how"):
        table.add_column(column)
    for f in seen.findings:
        said, saw = _says(says, f.field), "can't tell" if f.value is None else _plain(f.value)
        known = said not in ("", "unknown") and f.value is not None
        style = "yellow" if known and said != saw else ""
        table.add_row(f.field, said, saw, f.how, style=style)
    console = Console(highlight=False)
    console.print(table)
    for method, verdict in follows.items():
        console.print(f"{method}: {verdict}")

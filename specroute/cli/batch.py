"""``specroute batch``: a file of requests in OpenAI's batch format, answered into another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specroute.errors import RequestError


def batch(
    requests: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="One request a line, OpenAI's batch format.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where the answers go.")
    ],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Config; without it the usual look-up.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.")] = 32,
    method: Annotated[str | None, typer.Option(help="plain, score, …: for every request.")] = None,
    policy: Annotated[str | None, typer.Option(help="A preset, for every request.")] = None,
    attempts: Annotated[int, typer.Option(help="Of each request; the last one is plain.")] = 4,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds of the first attempt; each next has twice that.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Remembers answers for a resumed run; OUT.jsonl.journal unless given."),
    ] = None,
    job: Annotated[
        bool,
        typer.Option("--job", help="By the provider's own Batch API: cheaper, within a day."),
    ] = False,
    poll: Annotated[float, typer.Option(help="Seconds between two looks at a job.")] = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Answer a file of requests. Run again after a crash, it asks only for what is missing.

    Exits with 1 where a request could not be answered (its line in OUT.jsonl has the error), with 2
    where the file can't be sent.
    """
    import asyncio

    lines = _lines(requests)
    kept = journal or out.with_name(out.name + ".journal")

    async def run() -> Any:
        from specroute import AsyncSpecRoute

        shown = False if quiet else None
        async with AsyncSpecRoute.from_config(file) as client:
            if job:
                return await client.batch_job(lines, journal=kept, poll_s=poll, progress=shown)
            return await client.batch(
                lines,
                concurrency=concurrency,
                method=method,
                policy=policy,
                attempts=attempts,
                timeout=timeout,
                journal=kept,
                progress=shown,
            )

    result = asyncio.run(run())
    whole = out.with_name(out.name + ".part")
    with whole.open("w", encoding="utf-8") as stream:
        for item in result:
            stream.write(json.dumps(item.line(), ensure_ascii=False) + "\n")
    whole.replace(out)
    cost = "unknown" if result.cost_usd is None else f"${result.cost_usd:.4f}"
    resumed = sum(item.resumed for item in result)
    typer.echo(
        f"{len(result) - len(result.failed)} of {len(result)} answered into {out} "
        f"({resumed} from {kept}); cost of this run: {cost}",
        err=True,
    )
    if result.failed:
        first = result.failed[0]
        typer.echo(f"the first failure, {first.custom_id}: {first.error}", err=True)
        raise typer.Exit(1)


def _lines(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{str(path)!r} can't be read: {error}") from error
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: is no JSON ({error})") from error
    if not found:
        raise RequestError(f"{str(path)!r} has no requests: one JSON object a line is expected")
    return found

"""``specroute batch``: a file of requests in OpenAI's batch format, answered into another."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specroute.errors import RequestError, StoreFailed


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
    where the file can't be sent or the answers can't be written, with 130 after Ctrl-C.
    """
    import asyncio

    import openai

    lines = _lines(requests)
    kept = journal or out.with_name(out.name + ".journal")
    _check_places(requests, out, kept)

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

    try:
        result = asyncio.run(run())
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; run the same command again for what {kept} has no answer to", err=True
        )
        raise typer.Exit(130) from None
    except openai.APIError as error:  # A job that can't be made or seen.
        raise RequestError(
            f"the provider's Batch API: {error}; run the same command again, {kept} holds the jobs"
        ) from error
    try:
        _write(result, out)
    except OSError as error:
        raise StoreFailed(
            f"{str(out)!r} can't be written: {error}. The answers are in {str(kept)!r}: run the "
            "same command again, nothing is asked for twice"
        ) from error
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


def _check_places(requests: Path, out: Path, journal: Path) -> None:
    """Before anything is paid for: the answers will have a place of their own."""
    for here, name in ((requests, "the requests"), (journal, "the journal")):
        if out.resolve() == here.resolve():
            raise RequestError(f"{str(out)!r} is {name}: give the answers another file")
    if out.is_dir():
        raise RequestError(f"{str(out)!r} is a folder: name a file in it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise RequestError(f"{str(out)!r} can't be written: {error}") from error


def _write(result: Any, out: Path) -> None:
    """All of it, or the file stays as it was."""
    whole = out.with_name(out.name + ".part")
    try:
        # Half a surrogate pair in an answer becomes the JSON escape that it is.
        with whole.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            for item in result:
                stream.write(json.dumps(item.line(), ensure_ascii=False) + "\n")
        whole.replace(out)
    except OSError:
        whole.unlink(missing_ok=True)
        raise


def _lines(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors begin files with a mark.
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

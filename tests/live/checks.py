"""What every live test asserts, whichever server it is about."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specroute import AsyncSpecRoute, Report
from tests.live import agreement, results
from tests.live.agreement import Plain, Said
from tests.live.servers import NAME, Server
from tests.live.setup import MODEL


async def agrees_as_often(
    server: Server,
    run: str,
    config: dict[str, Any],
    plain: Sequence[Plain],
    tokens: int,
    *,
    scored: bool = True,
) -> list[Said]:
    """Speculative answers are the plain ones on as many prompts as plain agrees with itself on,
    and each difference is at a near-tie or on a prompt where plain differs from itself."""
    said, problems = await agreement.speculative_answers(config, server, plain, tokens)
    differences = [
        await agreement.difference(server, p, s, tokens)
        for p, s in zip(plain, said, strict=True)
        if not p.said.agrees(s)
    ]
    row = results.row(server.name, run, plain, said, differences, tokens)
    results.keep_row(row)
    notes = Counter(note for s in said if s.report for note in s.report.notes)
    for line in (*differences, *notes.items()):
        print(f"{server.name}, {run}: {line}")
    if scored:
        assert problems == []
    assert [str(d) for d in differences if not d.explained] == []
    assert row.same >= row.steady
    return said


def count(said: Sequence[Said], method: str) -> int:
    """How many answers came by ``method``."""
    return sum(s.report is not None and s.report.method == method for s in said)


async def plain_client_agrees(server: Server, plain: Sequence[Plain], tokens: int) -> None:
    """The client without a draft passes on what the server says."""
    said, problems = await agreement.speculative_answers(
        agreement.config_for(server), server, plain, tokens
    )
    assert problems == []
    assert [s.text for s in said] == [p.said.text for p in plain]
    assert {s.report.method for s in said if s.report} == {"plain"}


async def refused(server: Server, plain: Plain, tokens: int, score: str) -> tuple[str, Report]:
    """Told that the server scores by ``score``: (what warm-up says, the report of an answer, which
    is the plain one)."""
    caps = {"score": [score], "echo_max_logprobs": 5, "chat_max_logprobs": 5}
    config = agreement.config_for(server, drafts=["ngram"], capabilities=caps, tokenizer=str(MODEL))
    async with AsyncSpecRoute(config=config) as client:
        problems = await client.warm_up()
        said = await agreement.ask(client, "m", server, plain.prompt, tokens)
    assert said.report is not None
    assert (said.text, said.report.method) == (plain.said.text, "plain")
    assert len(problems) == 1
    return problems[0], said.report


def probe(server: Server, folder: Path) -> dict[str, Any]:
    """``specroute probe --json`` as a user runs it: field → what it saw, refusals as their
    reasons."""
    file = folder / "specroute.toml"
    file.write_text(
        f'version = 1\n[providers.lab]\nprofile = "{server.profile}"\n'
        f'base_url = "{server.base_url}"\nenv_key = ""\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "specroute.cli", "probe", f"lab:{NAME}", "--file", file, "--json",
         "--no-keep", "--tokenizer", MODEL],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seen = {
        f["field"]: f["how"] if f["field"].startswith("not scored") else f["seen"]
        for f in found["findings"]
    }
    results.keep(f"{server.name}: probe", {"seen": seen, "spent": found["spent"]})
    return seen


async def probed(server: Server, folder: Path) -> dict[str, Any]:
    return await asyncio.to_thread(probe, server, folder)

"""Ending a caller's stream at any point ends every call upstream within 100 ms; all is booked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.closed import task
from bench.closed.edit import POLICY
from bench.closed.outcome import Outcome
from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer

TITLE = "ending the stream: seconds until the server works on nothing"
CHUNKS = (1, 20, 60, 150)


async def run(rounds: int) -> Outcome:
    found = Outcome()
    script = task.edit_script()
    with task.closed_server(script) as server:
        capabilities = {"prefill": "continue_final_message", "prefill_repeats": False}
        made = task.config(server, POLICY, **capabilities)
        async with AsyncSpecRoute(config=made) as client:
            for chunks in CHUNKS:
                worst, booked, lanes = 0.0, True, 0
                for _ in range(min(rounds, 3)):
                    seconds, shown = await _ended(client, server, chunks)
                    worst = max(worst, seconds)
                    booked = booked and shown.billed_completion_tokens is not None
                    lanes = max(lanes, len(shown.attempts))
                found.rows.append(
                    {
                        "after chunks": str(chunks),
                        "worst s": f"{worst:.3f}",
                        "calls booked": str(lanes),
                    }
                )
                found.held[f"after {chunks} chunks: within 100 ms, all booked"] = (
                    worst <= 0.1 and booked
                )
    return found


async def _ended(client: AsyncSpecRoute, server: ReferenceServer, chunks: int) -> tuple[float, Any]:
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": task.ASK + task.FILE}],
        temperature=0,
        stream=True,
    )
    left = chunks
    async for _ in stream:
        left -= 1
        if not left:
            break
    started = time.perf_counter()
    await stream.close()
    assert server.server is not None
    engine = server.server.engine
    for _ in range(5000):
        choices = [*engine._running, *(choice for _, choice in engine._waiting)]
        if all(choice.cancelled or choice.finish for choice in choices):
            break
        await asyncio.sleep(0.001)
    return time.perf_counter() - started, report(stream)

"""A run that is killed and run again: every answer once, nothing paid for twice but what was under
way."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

from tests.client.world import config
from tests.support.loopback import Exchange, Loopback, completion

REQUESTS, AT_ONCE = 240, 8


async def test_a_batch_killed_at_random_points_ends_with_every_answer_once(tmp_path: Path) -> None:
    """`kill -9` three times; the fourth run finishes."""
    rng = random.Random(11)
    sent: Counter[str] = Counter()
    kill_at, reached = 0, asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        text = exchange.json["messages"][0]["content"]
        sent[text] += 1
        if sum(sent.values()) == kill_at:
            reached.set()
        await exchange.json_answer(completion(f"re: {text}"))

    lines = [
        {
            "custom_id": f"line-{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "smart", "messages": [{"role": "user", "content": f"q{i}"}]},
        }
        for i in range(REQUESTS)
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with Loopback(handler) as server:
        toml = tmp_path / "specroute.toml"
        lab = config(server.url)["providers"]["lab"]
        toml.write_text(
            "version = 1\n[providers.lab]\n"
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lab.items())
            + '[models.smart]\ntargets = ["lab:lab-model"]\n'
        )
        command = [sys.executable, "-m", "specroute.cli", "batch", str(source), "-o", str(out)]
        command += ["-f", str(toml), "--concurrency", str(AT_ONCE), "-q"]
        for kill in range(3):
            reached.clear()
            kill_at = sum(sent.values()) + rng.randint(10, 60)
            process = await asyncio.create_subprocess_exec(
                *command, stderr=asyncio.subprocess.DEVNULL
            )
            ended = asyncio.ensure_future(process.wait())
            told = asyncio.ensure_future(reached.wait())
            await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            assert process.returncode is None, f"run {kill} ended by itself"
            process.kill()
            await ended
            assert not out.exists(), f"kill {kill} came too late to tell anything"
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        assert process.returncode == 0, said
    answered = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["custom_id"] for line in answered] == [f"line-{i}" for i in range(REQUESTS)]
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in answered]
    assert texts == [f"re: q{i}" for i in range(REQUESTS)]
    assert f"{REQUESTS} of {REQUESTS} answered".encode() in said
    twice = sum(count - 1 for count in sent.values())
    assert twice <= 3 * AT_ONCE
    assert max(sent.values()) <= 4

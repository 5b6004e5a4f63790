"""The end of a proxy's process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.client.world import MESSAGES
from tests.support.loopback import Exchange, Loopback, chunks


async def test_what_is_under_way_is_finished_after_a_sigterm(tmp_path: Path) -> None:
    """The stream ends well, nothing new is taken, and the process ends as asked."""
    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        pieces = list(chunks("Hel", "lo"))
        await exchange.start()
        await exchange.piece(pieces[0])
        await exchange.piece(pieces[1])
        await release.wait()
        for piece in pieces[2:]:
            await exchange.piece(piece)
        await exchange.finish()

    async with (
        Loopback(slow) as server,
        asyncio.timeout(60),
        proxy(tmp_path, server.url) as (process, root),
        httpx2.AsyncClient(base_url=root, timeout=30) as http,
    ):
        body = {"model": "smart", "messages": MESSAGES, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.aiter_bytes()
            text = await anext(pieces)
            process.send_signal(signal.SIGTERM)
            while await _up(http):  # until the port is closed
                assert process.returncode is None
            release.set()
            async for piece in pieces:
                text += piece
        assert await process.wait() == -signal.SIGTERM
    assert text.rstrip().endswith(b"data: [DONE]")
    assert b'"finish_reason":"stop"' in text


async def test_what_outlasts_the_drain_is_cut_with_an_error(tmp_path: Path) -> None:
    """An error event in the stream, 503 before an answer has begun, and no traceback."""
    held, begun = asyncio.Event(), asyncio.Event()

    async def never_ends(exchange: Exchange) -> None:
        if len(server.seen) == 2:
            begun.set()
        if exchange.json.get("stream"):
            await exchange.start()
            for piece in list(chunks("Hel", "lo"))[:2]:
                await exchange.piece(piece)
        await held.wait()
        exchange.cut()

    async with Loopback(never_ends) as server:
        async with (
            asyncio.timeout(60),
            proxy(tmp_path, server.url, "--drain", "0") as (process, root),
            openai.AsyncOpenAI(api_key="none", base_url=f"{root}/v1", max_retries=0) as asking,
        ):
            stream: Any = await asking.chat.completions.create(
                model="smart", messages=MESSAGES, stream=True
            )
            await anext(stream)
            whole = asyncio.ensure_future(
                asking.chat.completions.create(model="smart", messages=MESSAGES)
            )
            await begun.wait()
            process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="the proxy is ending"):
                async for _ in stream:
                    pass
            with pytest.raises(openai.InternalServerError, match="the proxy is ending") as caught:
                await whole
            assert caught.value.status_code == 503
            assert process.stderr is not None
            assert await process.stderr.read() == b""
            assert await process.wait() == -signal.SIGTERM
        held.set()


async def test_an_address_in_use_is_said_and_nothing_else(tmp_path: Path) -> None:
    """Exit status 3; a URL is printed only where something listens."""
    async with Loopback(lambda exchange: asyncio.sleep(0)) as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        process = await asyncio.create_subprocess_exec(
            *command(tmp_path, server.url, "--port", port), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    assert process.returncode == 3
    assert b"address already in use" in said and b"serves" not in said


def command(folder: Path, url: str, *more: str) -> list[str]:
    file = folder / "specroute.toml"
    file.write_text(
        f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{url}"\n'
        '[models.smart]\ntargets = ["lab:m"]\n'
    )
    return [sys.executable, "-m", "specroute.cli", "serve", "-f", str(file), *more]


@asynccontextmanager
async def proxy(
    folder: Path, url: str, *more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process, and its address as it prints it when the port is open."""
    process = await asyncio.create_subprocess_exec(
        *command(folder, url, "--port", "0", *more), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        said = (await process.stderr.readline()).decode()
        assert "/v1 serves smart" in said
        yield process, said.partition("/v1")[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _up(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/healthz", headers={"connection": "close"})).status_code == 200
    except httpx2.TransportError:
        return False

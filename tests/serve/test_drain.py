"""The end of a proxy's process."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import httpx2

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

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Loopback(slow) as server:
        file = tmp_path / "specroute.toml"
        file.write_text(
            f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{server.url}"\n'
            '[models.smart]\ntargets = ["lab:m"]\n'
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "specroute.cli", "serve", "-f", str(file), "--port", str(port)
        )
        root = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=root, timeout=30) as http, asyncio.timeout(60):
            while not await _up(http):
                assert process.returncode is None
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


async def _up(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/healthz", headers={"connection": "close"})).status_code == 200
    except httpx2.TransportError:
        return False

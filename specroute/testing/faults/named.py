"""A fault with a name, and what most faults are made of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from specroute.testing.exchange import Exchange, Fault

ERROR = {"error": {"message": "the server had an error", "type": "server_error", "code": None}}
"""What an error in the middle of things says."""


@dataclass(frozen=True, slots=True)
class Named:
    """A named fault; ``play`` does it."""

    name: str
    play: Callable[[Exchange], Awaitable[None]] | Fault

    async def __call__(self, exchange: Exchange) -> None:
        await self.play(exchange)

    def __repr__(self) -> str:
        return f"faults.{self.name}"


def renamed(name: str, fault: Fault) -> Named:
    """The same fault under another name."""
    return Named(name, fault)


async def healthy(exchange: Exchange) -> None:
    async with exchange.answer() as answer:
        await exchange.relay(answer)


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

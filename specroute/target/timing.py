"""How fast a stream of the target's came: what each of the target's own streams tells of its pace.

Knows pieces and a clock. Knows no requests and no estimators.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from specroute.target.stream import Piece

MOST_HELD = 0.2
"""The share of its time that a stream may be held for by its reader, whose pace it is beyond."""


@dataclass(frozen=True, slots=True)
class StreamPace:
    """Seconds to the first token, seconds per token after it (``None``: the stream doesn't tell how
    many tokens a piece has, or there are too few), and the tokens that came."""

    ttft_s: float
    tpot_s: float | None
    tokens: int


async def timed(
    stream: AsyncGenerator[Piece],
    clock: Callable[[], float],
    tell: Callable[[StreamPace], None],
) -> AsyncGenerator[Piece]:
    """``stream`` as it is; ``tell`` hears of its pace when it ends, is ended, or breaks."""
    started = clock()
    first: float | None = None
    last = held = 0.0
    shown = 0
    told = True
    """Every piece so far has told how many tokens it has."""
    counted: int | None = None
    try:
        async with aclosing(stream):
            async for piece in stream:
                if piece.usage is not None:
                    counted = piece.usage.completion_tokens
                if piece.text or piece.texts:
                    last = clock()
                    first = last if first is None else first
                    shown += piece.tokens or 0
                    told = told and piece.tokens is not None
                handed = clock()
                yield piece
                held += clock() - handed
    finally:
        if first is not None and held <= MOST_HELD * (last - started):
            tokens = counted if counted is not None else shown if told else 0
            tpot_s = (last - first) / (tokens - 1) if tokens > 1 and last > first else None
            tell(StreamPace(first - started, tpot_s, tokens))

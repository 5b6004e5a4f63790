"""A stream's pace is the target's: what its reader held, or what shows no tokens, tells none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from specroute.target.stream import Piece
from specroute.target.timing import StreamPace, timed
from specroute.types import Usage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def pace(
    pieces: Sequence[tuple[float, Piece]], *, held: float = 0.0, read: int | None = None
) -> StreamPace | None:
    """What is told of pieces that come after so many seconds each, to a reader that holds each
    for ``held`` seconds and leaves after ``read`` of them."""
    clock = Clock()
    told: list[StreamPace] = []

    async def stream() -> AsyncGenerator[Piece]:
        for after, piece in pieces:
            clock.now += after
            yield piece

    watched = timed(stream(), clock, told.append)
    count = 0
    async for _ in watched:
        count += 1
        clock.now += held
        if count == read:
            break
    await watched.aclose()
    return told[0] if told else None


def token(text: str = "a") -> Piece:
    return Piece(text, texts=(text,))


async def test_the_first_token_and_those_after_it() -> None:
    """Seconds to the one, per token of the others."""
    found = await pace([(0.5, token()), *[(0.02, token())] * 10])
    assert found is not None
    assert (found.ttft_s, found.tokens) == (0.5, 11)
    assert found.tpot_s == pytest.approx(0.02)


async def test_the_servers_own_count_comes_first() -> None:
    """Chunks may hold several tokens."""
    end = Piece(usage=Usage(5, 21))
    found = await pace([(0.5, Piece("ab")), *[(0.02, Piece("ab"))] * 10, (0.0, end)])
    assert found is not None
    assert found.tpot_s == pytest.approx(0.01)


async def test_chunks_of_unknown_length_tell_only_of_the_first() -> None:
    """Their number is not the tokens'."""
    found = await pace([(0.5, Piece("ab")), *[(0.02, Piece("ab"))] * 10])
    assert found == StreamPace(0.5, None, 0)


async def test_a_stream_that_is_left_early_has_told_so_far() -> None:
    """A lane that another one has overtaken."""
    found = await pace([(0.5, token()), *[(0.02, token())] * 10], read=6)
    assert found is not None
    assert found.tokens == 6
    assert found.tpot_s == pytest.approx(0.02)


async def test_a_reader_that_holds_the_stream_sets_its_pace() -> None:
    """Then nothing is told of the target's."""
    assert await pace([(0.5, token()), *[(0.02, token())] * 10], held=0.1) is None


async def test_no_text_tells_nothing() -> None:
    """Not even of the first token."""
    assert await pace([(0.5, Piece(finish="stop"))]) is None

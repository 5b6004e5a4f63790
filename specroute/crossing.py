"""What two vocabularies share, token by token, and how bytes of one are said in the other.

The shared vocabulary of token-level intersection (TLI; Timor et al., arXiv 2502.05202): tokens
with the same bytes, and the end token. A draft restricted to it draws from

    q'(x) = q(x) / Σ q(y) over shared y,   0 elsewhere

which is a distribution over the *target's* ids like any other, so rejection sampling stays exact;
what is not shared is recovered by the target. Knows bytes and ids; deliberately no tokenizer
(functions are passed in), no model and no acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Tokens = Sequence[bytes | None]
"""The bytes of each id; ``None`` for ids without any (special tokens)."""


class Crossing:
    """Shared tokens as arrays: ``own[i]`` is the draft's id of the token whose id at the target is
    ``target[i]``, in the order of the draft's ids, the end token last."""

    def __init__(self, own: Sequence[int], target: Sequence[int], target_size: int) -> None:
        import numpy as np

        self.own = np.asarray(own, dtype=np.int64)
        self.target = np.asarray(target, dtype=np.int64)
        self.place = np.full(target_size, -1, dtype=np.int64)
        """The target's id → its place in both arrays; -1 for what isn't shared."""
        self.place[self.target] = np.arange(len(self.target))

    @classmethod
    def between(
        cls, own: Tokens, target: Tokens, ends: tuple[int | None, int | None] = (None, None)
    ) -> Crossing:
        """``ends``: the end tokens of both, which become one another; no other special token is
        shared. Of ids with the same bytes the last counts: SentencePiece's bytes come before the
        pieces that replace them, added tokens after those."""
        at_target = {piece: i for i, piece in enumerate(target) if piece}
        at_own = {piece: i for i, piece in enumerate(own) if piece}
        pairs = [(i, at_target[piece]) for piece, i in at_own.items() if piece in at_target]
        pairs.sort()
        if ends[0] is not None and ends[1] is not None:
            pairs.append((ends[0], ends[1]))
        return cls([i for i, _ in pairs], [i for _, i in pairs], len(target))

    def __len__(self) -> int:
        return len(self.own)

    def holds(self, target_id: int) -> bool:
        """Whether a token of the target's is shared."""
        return 0 <= target_id < len(self.place) and bool(self.place[target_id] >= 0)

    def distribution(self, shares: Any) -> SharedDistribution:
        """q' over the target's ids; ``shares`` are the probabilities in the arrays' order."""
        return SharedDistribution(self, shares)


class SharedDistribution:
    """``q[target_id]``: 0 for what is not shared."""

    __slots__ = ("crossing", "shares")

    def __init__(self, crossing: Crossing, shares: Any) -> None:
        self.crossing = crossing
        self.shares = shares
        """Probabilities of the shared tokens, in the crossing's order; they sum to 1."""

    def __getitem__(self, token_id: int, /) -> float:
        if not self.crossing.holds(token_id):
            return 0.0
        return float(self.shares[self.crossing.place[token_id]])


def whole(data: bytes) -> bytes:
    """``data`` up to its first byte that begins no whole UTF-8 character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data


def unfinished(data: bytes) -> bytes:
    """The bytes at the end that are a character's beginning; empty where there is none."""
    for size in range(1, min(3, len(data)) + 1):
        tail = data[-size:]
        if tail[0] >= 0xC0:  # a leading byte: is its character complete?
            needs = 2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4
            return tail if size < needs else b""
        if tail[0] < 0x80:
            return b""
    return b""


def said_after(
    encode: Callable[[str], Sequence[int]], tokens: Tokens, before: bytes, said: bytes
) -> tuple[int, ...]:
    """``said`` in the ids of ``encode``, as it comes after the text that ends with ``before``.

    The re-encoding of string-level exact match (SLEM; arXiv 2502.05202). Encoded together with
    ``before``, so that spaces and merges come out as in the middle of a text, and cut where
    ``said`` begins; where a token straddles that place, ``said`` is encoded by itself. Stops before
    bytes that are no whole character (yet), before text that would become a special token, and
    where a normalising tokenizer says something else. ``before`` may end inside a character. With
    nothing before it ``said`` begins as the tokenizer begins a text, be it with a space.
    """
    for lead in (before, b"", b"\n"):
        data = whole(lead + said)
        if len(data) <= len(lead):
            continue
        opening = bool(lead) or not before
        ids = _from(len(lead), encode(data.decode()), tokens, data, opening)
        if ids:
            return ids
    return ()


def _from(
    start: int, encoded: Sequence[int], tokens: Tokens, data: bytes, opening: bool
) -> tuple[int, ...] | None:
    """The ids from byte ``start`` of ``data`` on, as far as they say ``data``; ``None`` where no
    token begins there. ``opening``: a space put before the text (SentencePiece) is overlooked."""
    at, ids = 0, []
    for i, token in enumerate(encoded):
        piece = tokens[token]
        if piece is None:
            break
        if i == 0 and opening and not data.startswith(piece):
            piece = piece.removeprefix(b" ")
        if data[at : at + len(piece)] != piece:
            break
        if at >= start:
            ids.append(token)
        at += len(piece)
        if not ids and at > start:
            return None
    return tuple(ids) or None

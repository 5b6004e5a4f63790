"""The bytes that each token of a tokenizer stands for, read from its ``tokenizer.json``.

Knows the two ways in which tokenizers write bytes as text: GPT-2's alphabet (one printable
character a byte; byte-level BPE) and SentencePiece's ``▁`` for a space with ``<0xNN>`` for a byte
that has no piece of its own. Anything else is asked: what does decoding the token add to a letter?
Pure; knows no model, no text and no other tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(
    spec: Mapping[str, Any], size: int, decode: Callable[[Sequence[int]], str]
) -> tuple[bytes | None, ...]:
    """``spec`` is a parsed ``tokenizer.json``, ``decode`` its decoding. One entry for each id.

    ``None`` for ids that stand for no bytes: special tokens, the unknown token, gaps.
    """
    model = spec["model"]
    vocab = model["vocab"]
    pieces: list[str | None] = [None] * size
    for piece, token in vocab.items() if isinstance(vocab, dict) else _numbered(vocab):
        if token < size:
            pieces[token] = piece
    for added in spec.get("added_tokens") or []:
        if added["id"] < size:
            pieces[added["id"]] = None if added.get("special") else added["content"]
    unknown = model.get("unk_id")
    if isinstance(model.get("unk_token"), str) and isinstance(vocab, dict):
        unknown = vocab.get(model["unk_token"])
    if unknown is not None:
        pieces[unknown] = None
    read = _reader(list(_steps(spec.get("decoder"))), bool(model.get("byte_fallback")))
    if read is None:
        read = _asked(pieces, decode)
    return tuple(None if piece is None else read(i, piece) for i, piece in enumerate(pieces))


def _numbered(vocab: Sequence[Any]) -> Iterator[tuple[str, int]]:
    return ((entry[0], i) for i, entry in enumerate(vocab))


def _steps(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """A decoder's steps, sequences laid flat."""
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for part in decoder.get("decoders") or []:
                yield from _steps(part)
        else:
            yield decoder


def _reader(
    steps: Sequence[Mapping[str, Any]], byte_fallback: bool
) -> Callable[[int, str], bytes | None] | None:
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return lambda _, piece: _gpt2(piece)
    space = None
    for step in steps:
        if step.get("type") == "Metaspace":
            space = step.get("replacement", "▁")
        elif step.get("type") == "Replace" and step.get("content") == " ":
            pattern = step.get("pattern") or {}
            space = pattern.get("String", space)
    if space is None:
        return None
    byte_fallback = byte_fallback or "ByteFallback" in kinds

    def sentencepiece(_: int, piece: str) -> bytes:
        byte = _BYTE.fullmatch(piece) if byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else piece.replace(space, " ").encode()

    return sentencepiece


def _asked(
    pieces: Sequence[str | None], decode: Callable[[Sequence[int]], str]
) -> Callable[[int, str], bytes | None]:
    """By decoding each token after a letter; ``None`` where that gives no whole characters."""
    anchor = next((i for i, p in enumerate(pieces) if p is not None and p.isalpha()), None)
    before = "" if anchor is None else decode((anchor,))

    def read(token: int, _: str) -> bytes | None:
        text = decode((token,) if anchor is None else (anchor, token))
        if not text.startswith(before) or "\ufffd" in text:
            return None
        return text[len(before) :].encode() or None

    return read


def _gpt2(piece: str) -> bytes:
    """As the byte-level decoder does it: a piece with a character outside the alphabet (an added
    token) stands for itself."""
    alphabet = gpt2_alphabet()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode()


@cache
def gpt2_alphabet() -> Mapping[str, int]:
    """Character → byte: printable Latin-1 stands for itself, the other bytes are moved to U+0100
    and up in order (GPT-2's ``bytes_to_unicode``)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(b): b for b in kept} | {chr(0x100 + i): b for i, b in enumerate(moved)}

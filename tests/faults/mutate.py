"""Seeded damage: to bytes, to decoded JSON, and to how bytes are cut into pieces. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

SCRAPS = [
    b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"data:", b"data: ", b"event: error\n", b"id: 7\n", b":\n",
    b"data: [DONE]\n\n", b"[DONE]", b"null", b"{}", b"[]", b'""', b"-1e999", b"NaN", b"Infinity", b"\xff", b"\xef\xbb\xbf",
    b"\xe4\xbd", b"\x00", b'"', b"\\", b"\\u", b"\\ud800", b"[" * 3000, b'{"a":' * 2000, b"9" * 5000, b'{"error":{}}',
    b'"error":"x"', b'"finish_reason":"stop"', b'"content":"x"', b'"usage":{', b'"choices":null', b"<html>",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**70, -0.5, 0.7, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "token_id:1",
    "token_id:-1", "token_id:99999999999999999999", "\ud800", "\ufffd", "你", [], [None], [[]], {}, {"x": None}, "x" * 10_000,
    list(range(500)), {"token": 5, "logprob": "x"}, {"logprob": None}, [{"index": -1}], {"error": {"message": 5}},
]  # fmt: skip


def damaged(data: bytes, rng: Random) -> bytes:
    """``data`` with one to four wounds."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data = data[:at] + rng.choice(SCRAPS) + data[at:]
            case 1:
                data = data[:at] + data[at + rng.randint(1, 40) :]
            case 2:
                data = data[:at]
            case 3:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 4:
                end = at + rng.randint(1, 200)
                data = data[:end] + data[at:end] + data[end:]
            case 5:
                data = data.replace(*rng.choice(SWAPS))
            case 6:
                data = data[at:] + data[:at]
    return data


SWAPS = [
    (b"\n\n", b"\r\n\r\n"), (b"\n", b"\r"), (b"data: ", b"data:"), (b'"content"', b'"reasoning"'), (b'"choices":[', b'"choices":[null,'),
    (b'"delta":{', b'"delta":null,"x":{'), (b"[DONE]", b"[DONE"), (b'"finish_reason":null', b'"finish_reason":5'), (b"[", b"{"), (b'"', b""),
]  # fmt: skip


def wounded(value: Any, rng: Random) -> Any:
    """A decoded answer with one to three wounds."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        where = value
        while True:
            keys: Sequence[Any] = list(where) if isinstance(where, dict) else range(len(where))
            if not keys:
                break
            key = rng.choice(keys)
            inner = where[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
                where = inner
                continue
            match rng.randrange(5):
                case 0 | 1:
                    where[key] = copy.deepcopy(rng.choice(VALUES))
                case 2:
                    del where[key]
                case 3:
                    where[key] = (
                        copy.deepcopy(value)
                        if rng.random() < 0.1
                        else [inner, copy.deepcopy(inner)]
                    )
                case 4 if isinstance(where, list):
                    where.insert(key, copy.deepcopy(inner))
                case _:
                    where[key] = str(inner)
            break
    return value


def pieces(data: bytes, rng: Random) -> list[bytes]:
    """``data`` cut anywhere."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def dumps(value: Any) -> bytes:
    """As bytes, also where it is no proper JSON."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")

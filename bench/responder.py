"""The leanest server that answers chat calls: no framework, canned bytes, one process of its own.

``python bench/responder.py [--pace SECONDS]`` prints its port and serves until its input ends. A
streamed answer is 20 content chunks, each written in a turn of its own (``--pace`` apart).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

CHUNKS = 20


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    event = b"data: " + _json(
        {
            "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz123",
            "object": "chat.completion.chunk",
            "created": 1764400000,
            "model": "bench-model",
            "system_fingerprint": "fp_0123456789",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }
    )
    event += b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


ANSWER = _json(
    {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz123",
        "object": "chat.completion",
        "created": 1764400000,
        "model": "bench-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * CHUNKS},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": CHUNKS, "total_tokens": 12 + CHUNKS},
    }
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_1\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-request-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"
)
PARTS = [
    HEAD + _chunk({"role": "assistant", "content": ""}),
    *[_chunk({"content": "word "}) for _ in range(CHUNKS)],
    _chunk({}, "stop"),
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
]


class Responder(asyncio.Protocol):
    """One keep-alive connection; requests are answered one after another."""

    pace = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            if b'"stream":true' in body or b'"stream": true' in body:
                self.part(0)
            else:
                self.transport.write(WHOLE)

    def part(self, index: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(PARTS[index])
        if index + 1 < len(PARTS):
            asyncio.get_running_loop().call_later(self.pace, self.part, index + 1)


async def serve(pace: float) -> None:
    Responder.pace = pace
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Responder, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args().pace))

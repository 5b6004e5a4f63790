"""A small OpenAI-shaped server for the compatibility table; the model's name picks what it does."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.support.loopback import DONE, Exchange, chunk, chunks, completion, event

TOOL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
}


class Server:
    """The handler; counts what it was asked, so that a model can fail a number of times first."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.path.removeprefix("/v1")
        if path == "/chat/completions" and exchange.method == "POST":
            await self.chat(exchange)
        elif path == "/completions":
            await self.completions(exchange)
        elif path == "/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            await exchange.json_answer(
                {"object": "list", "data": data, "model": "emb", "usage": usage}
            )
        elif path == "/models":
            rows = [
                {"id": f"m{n}", "object": "model", "created": n, "owned_by": "x"} for n in (1, 2)
            ]
            await exchange.json_answer({"object": "list", "data": rows})
        elif path.startswith("/models/"):
            if exchange.method == "DELETE":
                await exchange.json_answer({"id": path[8:], "object": "model", "deleted": True})
            elif path.endswith("missing"):
                await exchange.json_answer({"error": {"message": "no model", "code": "nf"}}, 404)
            else:
                await exchange.json_answer({"id": path[8:], "object": "model", "created": 1})
        elif path == "/files" and exchange.method == "POST":
            await self.upload(exchange)
        elif path == "/files":
            after = exchange.query.get("after")
            rows = [] if after == "f2" else [{"id": f} for f in ("f1", "f2")][bool(after) :]
            await exchange.json_answer({"object": "list", "data": rows, "has_more": not after})
        elif path.endswith("/content"):
            await exchange.send(200, bytes(range(256)) * 8, kind="application/octet-stream")
        elif path == "/responses":
            await self.responses(exchange)
        elif path == "/audio/speech":
            await exchange.send(200, b"RIFFdata", kind="audio/wav")
        elif path == "/own":
            await exchange.json_answer({"query": exchange.query, "body": _json(exchange)})
        else:
            await exchange.json_answer({"error": {"message": f"no {path}"}}, 404)

    async def chat(self, exchange: Exchange) -> None:
        body = exchange.json
        model: str = body["model"]
        headers = {"x-request-id": "req-7", "x-own": "yes"}
        if model.startswith("status-"):
            status = int(model[7:])
            error = {"message": f"said {status}", "type": "t", "param": "p", "code": "c"}
            await exchange.json_answer({"error": error}, status, {"retry-after-ms": "1", **headers})
        elif model == "page":
            await exchange.send(503, b"<html>busy</html>", {"retry-after-ms": "1"}, "text/html")
        elif model == "google":
            await exchange.json_answer([{"error": {"code": 400, "message": "bad"}}], 400)
        elif model.startswith("flaky-"):
            self.turns[model] += 1
            if self.turns[model] <= int(model[6:]):
                await exchange.json_answer(
                    {"error": {"message": "no"}}, 500, {"retry-after-ms": "1"}
                )
            else:
                count = exchange.headers.get("x-stainless-retry-count")
                await exchange.json_answer(completion(f"after {count}"), headers=headers)
        elif model == "no-retry":
            self.turns[model] += 1
            await exchange.json_answer({}, 500, {"x-should-retry": "false"})
        elif model == "silent":
            await exchange.gone.wait()
        elif model == "headers":
            wanted = ("x-call", "x-default", "accept", "content-type", "authorization",
                      "openai-organization", "openai-project", "idempotency-key")  # fmt: skip
            seen = {k: v.partition("/")[0] for k, v in exchange.headers.items() if k in wanted}
            await exchange.json_answer(
                completion(json.dumps([seen, exchange.query, body], sort_keys=True))
            )
        elif model == "parse":
            text = '{"word":"hi","count":2}'
            await self.text(exchange, completion(text), [chunk(text[:9]), chunk(text[9:])])
        elif model == "tools":
            whole = completion(None)
            whole["choices"][0]["message"]["tool_calls"] = [TOOL]
            whole["choices"][0]["finish_reason"] = "tool_calls"
            first = {**TOOL, "index": 0, "function": {"name": "weather", "arguments": ""}}
            second = {"index": 0, "function": {"arguments": '{"city":"Oslo"}'}}
            pieces = [
                event({"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
                for call in (first, second)
            ]
            await self.text(exchange, whole, pieces, "tool_calls")
        elif model == "length":
            whole = completion("{")
            whole["choices"][0]["finish_reason"] = "length"
            await self.text(exchange, whole, [chunk("{")], "length")
        elif model == "two":
            whole = completion("one")
            whole["choices"].append({**whole["choices"][0], "index": 1})
            pieces = [
                event({"id": "1", "choices": [{"index": i, "delta": {"content": "x"}}]})
                for i in (0, 1)
            ]
            await self.text(exchange, whole, pieces)
        elif model == "error-event":
            await exchange.stream(
                [chunk("a"), event({"error": {"message": "boom", "code": "c", "type": "t"}}), DONE]
            )
        elif model == "no-done":
            await exchange.stream([chunk("a"), chunk(finish="stop")])
        elif model == "odd":
            # Null in the place of choices or a delta is mended (tests/client/test_odd_answers.py).
            none = {"id": "1", "choices": []}
            empty = {"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
            pieces = [b": hi\r\n\r\n", event(none).replace(b"\n", b"\r\n"), event(empty)]
            await exchange.stream([*pieces, chunk("caf\u00e9\u2028"), chunk(finish="eos"), DONE])
        elif model == "unicode":
            whole = b"".join(chunks("na\u00efve \U0001f600", "\u4f60\u597d"))
            await exchange.stream(whole[i : i + 7] for i in range(0, len(whole), 7))
        else:
            await self.text(exchange, completion("Hello there", own_field={"a": 1}), [
                chunk("Hello"), chunk(" there")], headers=headers)  # fmt: skip

    async def text(
        self,
        exchange: Exchange,
        whole: dict[str, Any],
        pieces: list[bytes],
        finish: str = "stop",
        headers: dict[str, str] | None = None,
    ) -> None:
        body = exchange.json
        if not body.get("stream"):
            await exchange.json_answer(whole, headers=headers)
            return
        ends = [chunk(finish=finish)]
        if (body.get("stream_options") or {}).get("include_usage"):
            ends.append(event({"id": "1", "choices": [], "usage": whole["usage"]}))
        await exchange.stream([chunk("", role="assistant"), *pieces, *ends, DONE], headers)

    async def completions(self, exchange: Exchange) -> None:
        choice = {"index": 0, "text": "old", "finish_reason": "stop", "logprobs": None}
        whole = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        if exchange.json.get("stream"):
            parts = [{**choice, "text": t, "finish_reason": None} for t in ("o", "ld")]
            rows = [*parts, {**choice, "text": ""}]
            await exchange.stream([event({**whole, "choices": [row]}) for row in rows] + [DONE])
        else:
            await exchange.json_answer({**whole, "choices": [choice]})

    async def upload(self, exchange: Exchange) -> None:
        self.turns["upload"] += 1
        if b"flaky" in exchange.body and self.turns["upload"] == 1:
            await exchange.json_answer({}, 500, {"retry-after-ms": "1"})
            return
        kind = exchange.headers["content-type"].partition(";")[0]
        await exchange.json_answer(
            {"id": "f1", "object": "file", "bytes": exchange.body.count(b"x"), "filename": kind}
        )

    async def responses(self, exchange: Exchange) -> None:
        answer = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
                }
            ],
        }
        if not exchange.json.get("stream"):
            await exchange.json_answer(answer)
            return
        rows = [
            {
                "type": "response.created",
                "sequence_number": 0,
                "response": {**answer, "output": []},
            },
            {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hello"},
            {"type": "response.completed", "sequence_number": 2, "response": answer},
        ]
        await exchange.stream(f"event: {row['type']}\n".encode() + event(row) for row in rows)


def _json(exchange: Exchange) -> Any:
    return exchange.json if exchange.body else None

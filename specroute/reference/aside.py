"""The endpoints beside the answers: models, tokens, templates, embeddings. They generate nothing.

Knows what each of them reads and sends, vLLM's and llama.cpp's among them.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Any

from specroute.reference.answer import dumps
from specroute.reference.call import Call
from specroute.reference.errors import invalid
from specroute.reference.request import boolean
from specroute.reference.served import Served


class Aside:
    """``started``: when the server was, in seconds since 1970."""

    def __init__(self, served: Served, started: int) -> None:
        self._served, self._started = served, started

    async def _json(self, call: Call, value: Any) -> None:
        await call.outbox.until(call.arrived + self._served.options.pace.rtt)
        await call.reply(200, dumps(value))

    async def health(self, call: Call) -> None:
        await self._json(call, {"status": "ok"})

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "specroute-reference",
            "max_model_len": self._served.backend.max_len,
        }

    async def models(self, call: Call) -> None:
        await self._json(
            call, {"object": "list", "data": [self._model(n) for n in self._served.names]}
        )

    async def one_model(self, call: Call) -> None:
        name = call.scope["path_params"]["name"]
        self._served.check_model(name)
        await self._json(call, self._model(name))

    async def tokenize(self, call: Call) -> None:
        body = await call.body()
        self._optional_model(call, body)
        if "messages" in body:
            rendered = self._served.chat_prompt(body)
            ids = self._served.backend.encode(rendered, boolean(body, "add_special_tokens"))
        else:
            prompt = body.get("prompt")
            if not isinstance(prompt, str):
                raise invalid("prompt", prompt, "a string (or messages instead)")
            ids = self._served.backend.encode(prompt, boolean(body, "add_special_tokens", True))
        value = {"tokens": ids, "count": len(ids), "max_model_len": self._served.backend.max_len}
        if boolean(body, "return_token_strs"):
            value["token_strs"] = [
                self._served.backend.piece(i).decode("utf-8", "replace") for i in ids
            ]
        await self._json(call, value)

    async def detokenize(self, call: Call) -> None:
        body = await call.body()
        self._optional_model(call, body)
        ids = body.get("tokens")
        if not isinstance(ids, list):
            raise invalid("tokens", ids, "a list of token ids")
        self._served.check_ids(ids, "tokens")
        text = b"".join(map(self._served.backend.piece, ids)).decode("utf-8", "replace")
        await self._json(call, {"prompt": text})

    async def apply_template(self, call: Call) -> None:
        body = await call.body()
        self._optional_model(call, body)
        await self._json(call, {"prompt": self._served.chat_prompt(body)})

    def _optional_model(self, call: Call, body: dict[str, Any]) -> None:
        if body.get("model") is not None:
            call.record.model = str(body["model"])
            self._served.check_model(body["model"])

    async def embeddings(self, call: Call) -> None:
        body = await call.body()
        self._optional_model(call, body)
        given = body.get("input")
        inputs = given if isinstance(given, list) and given else [given]
        if not all(isinstance(i, str) for i in inputs):
            raise invalid("input", given, "a string or a list of strings")
        encoded = body.get("encoding_format", "float")
        if encoded not in ("float", "base64"):
            raise invalid("encoding_format", encoded, "float or base64")
        data, tokens = [], 0
        for i, text in enumerate(inputs):
            tokens += len(self._served.backend.encode(text, False))
            digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8]
            vector: Any = [byte / 128 - 1 for byte in digest]
            if encoded == "base64":
                vector = base64.b64encode(struct.pack("<8f", *vector)).decode()
            data.append({"object": "embedding", "index": i, "embedding": vector})
        call.record.prompts, call.record.prompt_tokens = len(inputs), tokens
        call.record.charged_prompt_tokens = tokens
        counts = {"prompt_tokens": tokens, "total_tokens": tokens}
        await self._json(
            call, {"object": "list", "model": body.get("model"), "data": data, "usage": counts}
        )

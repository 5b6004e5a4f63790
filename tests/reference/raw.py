"""Raw JSON and event streams, for what a client library would hide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2

from specroute.reference.running import ReferenceServer


def messages(text: str) -> list[dict[str, Any]]:
    """One user message."""
    return [{"role": "user", "content": text}]


class Http:
    """Raw JSON over one kept-alive connection."""

    def __init__(self, server: ReferenceServer) -> None:
        self.server = server
        self._client = httpx2.Client(base_url=server.url, timeout=20, verify=False)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        """Send ``body`` with the server's own model name, unless it names another."""
        return self._client.post(path, json={"model": self.server.model, **body})

    def get(self, path: str) -> httpx2.Response:
        return self._client.get(path)

    def complete(self, **body: Any) -> dict[str, Any]:
        """An unstreamed completion, which must succeed."""
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, **body: Any) -> dict[str, Any]:
        """An unstreamed chat completion, which must succeed."""
        answer = self.post("/v1/chat/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """All chunks of a stream, which must end with ``[DONE]``."""
        answer = self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        return list(events(answer.text))

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def events(body: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a complete event stream; it must end with ``[DONE]``."""
    datas = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert datas[-1] == "[DONE]"
    yield from map(json.loads, datas[:-1])

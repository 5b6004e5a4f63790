"""What a batch is asked for: request bodies, or lines in the format of OpenAI's batch files.

Pure. Knows ids, paths and bodies; sends nothing. Format of a line: OpenAI API reference, Batch
("the request input object").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specroute.errors import RequestError

_LINE = frozenset({"custom_id", "method", "url", "body"})
_PATHS = {"messages": "/chat/completions", "prompt": "/completions"}
MOST_PROBLEMS = 10
"""Problems that are listed before the rest is counted."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch."""

    custom_id: str
    """Unique within the batch: the caller's, or one made from the content."""
    path: str
    """Below the base URL, as in ``/chat/completions``."""
    body: Mapping[str, Any]
    digest: str
    """Of path and body: an answer in a journal counts only for the same request."""


def read_requests(requests: Iterable[Mapping[str, Any]]) -> list[BatchRequest]:
    """Check a batch. An entry is the arguments of ``chat.completions.create`` or
    ``completions.create``, or a batch line: ``{"custom_id", "method": "POST", "url", "body"}``.

    Ids that the caller left out are made from the content, the same in every run, so that a journal
    still fits after the order has changed. Raises :class:`RequestError` with all problems: an id
    that is used twice, a body that is no JSON, ``stream = true``.
    """
    found: list[tuple[str | None, str, Mapping[str, Any], str]] = []
    problems: list[str] = []
    first: dict[str, int] = {}
    for number, entry in enumerate(requests, 1):
        read = _read(entry)
        if isinstance(read, str):
            problems.append(f"request {number}: {read}")
            continue
        custom_id = read[0]
        if custom_id is not None and first.setdefault(custom_id, number) != number:
            problems.append(
                f"request {number}: custom_id {custom_id!r} is that of request {first[custom_id]}; "
                "ids must be unique"
            )
        found.append(read)
    if problems:
        shown = problems[:MOST_PROBLEMS]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown)} more")
        raise RequestError("the batch can't be sent: " + "; ".join(shown))
    seen: dict[str, int] = {}
    out: list[BatchRequest] = []
    for custom_id, path, body, digest in found:
        while custom_id is None:
            seen[digest] = seen.get(digest, 0) + 1
            made = f"{digest}-{seen[digest]}"
            custom_id = None if made in first else made
        out.append(BatchRequest(custom_id, path, body, digest))
    return out


def _read(entry: Any) -> tuple[str | None, str, Mapping[str, Any], str] | str:
    """(id, path, body, digest), or what is wrong."""
    if not isinstance(entry, Mapping):
        return f"must be an object, got {type(entry).__name__}"
    custom_id, path = None, None
    body: Any = entry
    if "body" in entry or "custom_id" in entry:
        unknown = sorted(set(entry) - _LINE)
        if unknown:
            return f"{unknown[0]!r} is not known in a batch line; known: {', '.join(sorted(_LINE))}"
        custom_id, body = entry.get("custom_id"), entry.get("body")
        if custom_id is not None and (not isinstance(custom_id, str) or not custom_id):
            return f"custom_id must be a text that isn't empty, got {custom_id!r}"
        if entry.get("method", "POST") != "POST":
            return f"method must be 'POST', got {entry['method']!r}"
        if not isinstance(body, Mapping):
            return f"body must be an object, got {type(body).__name__}"
        path = entry.get("url")
        if path is not None:
            if not isinstance(path, str) or not path.startswith("/"):
                return f"url must be a path such as '/v1/chat/completions', got {path!r}"
            path = path.removeprefix("/v1")
    if path is None:
        path = next((p for key, p in _PATHS.items() if key in body), None)
        if path is None:
            return (
                "has neither 'messages' nor 'prompt', so its path isn't clear: give it as a line "
                "{'custom_id': …, 'url': '/v1/…', 'body': {…}}"
            )
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return f"model must be a name, got {model!r}"
    if body.get("stream"):
        return "stream must be false: a batch gives whole answers"
    try:
        text = json.dumps([path, body], sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"its body can't be written as JSON: {error}"
    return (
        custom_id,
        path,
        body,
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest(),
    )

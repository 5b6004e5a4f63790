"""The bill: one record for each request, in memory and, if asked for, as JSON lines in a file.

Knows what was asked, counted and charged; deliberately not prices. A record is written before the
answer's last byte leaves, so whoever has read an answer to its end finds its record here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Record:
    """What one request was and used. Seconds are wall-clock, tokens the model's."""

    id: str
    """As in the answer's ``x-request-id``."""
    time: float
    """When it arrived, in seconds since 1970."""
    path: str
    connection: str
    """The client's ``host:port``: equal for requests on one kept-alive connection."""
    model: str | None = None
    stream: bool = False
    echo: bool = False
    prompts: int = 0
    """How many prompts the request carried."""
    prompt_tokens: int = 0
    """All of them, as ``usage`` shows them."""
    cached_tokens: int = 0
    """Those read from the prefix cache; part of ``prompt_tokens``."""
    charged_prompt_tokens: int = 0
    """Those that cost prefill time: not cached, and of a request that came to be computed."""
    completion_tokens: int = 0
    """Those generated; of a cancelled request, until it was cancelled."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    """Of a prediction; the rejected ones are billed beside ``completion_tokens``."""
    finish_reasons: list[str] = field(default_factory=list)
    status: int = 0
    """The HTTP status; 499 where the client left first."""
    cancelled: bool = False
    seconds: float = 0.0
    """Arrival to the end of the answer."""
    overrun_s: float = 0.0
    """By how much real computing exceeded the pace: 0 means that the pace was kept."""
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        return asdict(self)


class AccessLog:
    """Records in order of completion. Written by the server, read from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        """Append to ``path`` as well, if given; it is opened at once, so a bad one fails early."""
        self.records: list[Record] = []
        self._file = path.open("a", encoding="utf-8") if path else None
        self._changed = threading.Condition()

    def add(self, record: Record) -> None:
        """Append ``record`` and wake whoever waits."""
        if self._file:
            self._file.write(json.dumps(record.as_dict()) + "\n")
            self._file.flush()
        with self._changed:
            self.records.append(record)
            self._changed.notify_all()

    def wait_for(self, enough: Callable[[list[Record]], bool], timeout: float) -> None:
        """Block until ``enough(records)``; ``TimeoutError`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not enough(self.records):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"the access log didn't come to that in {timeout} s")

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

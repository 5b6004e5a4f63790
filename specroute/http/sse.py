"""A strict decoder of server-sent events over bytes.

Knows the event-stream format (CR, LF and CRLF, comments, multi-line data, a byte-order mark) and
the few marks that chat and completions chunks are told apart by. Deliberately does not decode
JSON unless asked: pass-through only ever looks at bytes. The same bytes give the same events,
however they were cut into pieces.
"""

from __future__ import annotations

import json
import re
from typing import Any

from specroute.errors import BadAnswer

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A single event longer than this is refused rather than buffered for ever."""

_BOM = b"\xef\xbb\xbf"
# Two line ends in a row. A lone CR may end the buffer: its LF, if one follows, is skipped later.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")
# Inside a JSON string every quote is escaped, so these match keys of the chunk only.
_CONTENT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments|token)"\s*:\s*"[^"]'
    rb'|"(?:tool_calls)"\s*:\s*\[\s*\{|"(?:function_call|audio)"\s*:\s*\{'
)
# Some servers write "" or "null" where the answer goes on.
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"(?!"|null")')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'"error"\s*:\s*[^\sn]')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class SseEvent:
    """One event: ``payload`` is its data lines joined by LF, ``name`` its ``event:`` field.

    ``raw`` is the block as it came, without the blank line that ended it. ``data`` decodes the
    payload on first use.
    """

    __slots__ = ("_data", "name", "payload", "provider", "raw")

    def __init__(self, raw: bytes, payload: bytes, name: bytes = b"", provider: str = "?") -> None:
        self.raw = raw
        self.payload = payload
        self.name = name
        self.provider = provider
        self._data: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"SseEvent({self.payload[:60]!r})"

    @property
    def data(self) -> dict[str, Any]:
        """The payload as a JSON object. Raises :class:`~specroute.errors.BadAnswer`."""
        if self._data is None:
            try:
                value = json.loads(self.payload.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise BadAnswer(
                    f"{self.provider}: a stream event is not JSON: {self.payload[:80]!r}",
                    provider=self.provider,
                ) from error
            if not isinstance(value, dict):
                raise BadAnswer(
                    f"{self.provider}: a stream event is not a JSON object: {self.payload[:80]!r}",
                    provider=self.provider,
                )
            self._data = value
        return self._data

    @property
    def done(self) -> bool:
        """``[DONE]``."""
        return self.payload.startswith(b"[DONE]")

    @property
    def has_content(self) -> bool:
        """Carries something of the answer: text, reasoning, a tool call, audio, a logprob."""
        return _CONTENT.search(self.payload) is not None

    @property
    def has_finish(self) -> bool:
        """Some choice has a ``finish_reason``."""
        return _FINISH.search(self.payload) is not None

    @property
    def has_usage(self) -> bool:
        """Has a ``usage`` object."""
        return _USAGE.search(self.payload) is not None

    @property
    def only_usage(self) -> bool:
        """The usage chunk of ``include_usage``: usage, and no choice."""
        return self.has_usage and _NO_CHOICES.search(self.payload) is not None

    @property
    def error(self) -> Any:
        """The error object that the event brings instead of content, or ``None``."""
        if self.name == b"error":
            try:
                data = self.data
            except BadAnswer:
                return {"message": self.payload[:500].decode("utf-8", "replace")}
            return data.get("error") or data
        if _ERROR.search(self.payload) is None:
            return None
        return self.data.get("error") or None


class SseDecoder:
    """Bytes in, complete events out. Comments and events without data come out with an empty
    payload, so that a pass-through can forward them and everyone else skip them."""

    __slots__ = ("_buffer", "_scanned", "_skip_lf", "_started", "limit", "provider")

    def __init__(self, provider: str = "?", limit: int = MAX_EVENT_BYTES) -> None:
        self.provider = provider
        self.limit = limit
        self._buffer = b""
        self._scanned = 0
        self._skip_lf = False
        self._started = False

    @property
    def pending(self) -> bool:
        """Some bytes of an unfinished event are held."""
        return bool(self._buffer) or self._skip_lf

    def skip(self) -> None:
        """Whole events went past this decoder; what comes next can't be the byte-order mark."""
        self._started = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Add bytes; return the events that they complete.

        Raises :class:`~specroute.errors.BadAnswer` for an event over ``limit`` bytes.
        """
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if not self._started:
            chunk = self._buffer + chunk
            if len(chunk) < 3 and _BOM.startswith(chunk):
                self._buffer = chunk
                return []
            self._started = True
            self._buffer = b""
            chunk = chunk.removeprefix(_BOM)
        if not self._buffer and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            blocks = chunk[:-2].split(b"\n\n")
            if len(chunk) > self.limit and max(map(len, blocks)) > self.limit:
                raise self._too_long()
            return [self._event(block) for block in blocks if block and block != b"\n"]
        return self._feed_slowly(chunk)

    def _feed_slowly(self, chunk: bytes) -> list[SseEvent]:
        buffer = self._buffer + chunk if self._buffer else chunk
        events: list[SseEvent] = []
        start = 0
        # The last bytes were looked at before; a line end may straddle the cut.
        match = _END.search(buffer, max(0, self._scanned - 3))
        while match is not None:
            if match.start() > start:
                if match.start() - start > self.limit:
                    raise self._too_long()
                events.append(self._event(buffer[start : match.start()]))
            start = match.end()
            match = _END.search(buffer, start)
        self._skip_lf = start == len(buffer) and buffer.endswith(b"\r") and start > 0
        self._buffer = buffer[start:]
        self._scanned = len(self._buffer)
        if len(self._buffer) > self.limit:
            raise self._too_long()
        return events

    def flush(self) -> list[SseEvent]:
        """The stream has ended: what is left, as an event of its own (empty list: nothing)."""
        block = _LINE.sub(b"\n", self._buffer).strip(b"\n")
        self._buffer = b""
        return [self._event(block)] if block else []

    def _event(self, block: bytes) -> SseEvent:
        if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
            return SseEvent(block, block[6:], b"", self.provider)
        lines: list[bytes] = []
        name = b""
        for line in _LINE.split(block):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value
        return SseEvent(block, b"\n".join(lines), name, self.provider)

    def _too_long(self) -> BadAnswer:
        return BadAnswer(
            f"{self.provider}: a stream event is longer than {self.limit} bytes",
            provider=self.provider,
        )

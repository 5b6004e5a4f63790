"""Which bytes of a stream are ordinary pieces of text, told without decoding them. Pure.

Cautious: whatever might be anything else (an end, usage, a tool call, an error) is not ordinary.
"""

from __future__ import annotations


def ordinary(chunk: bytes) -> int:
    """How many events ``chunk`` is where all of them are ordinary pieces of text; 0: it isn't."""
    events = chunk.count(b"\n\n")
    if (
        not chunk.startswith(b"data: {")
        or not chunk.endswith(b"}\n\n")
        or chunk.count(b"data: {") != events
        or b'"content":""' in chunk
        or b'"finish_reason":"' in chunk
        or b'"error"' in chunk
        or b'"tool_calls":[{' in chunk
        or b'"usage":{' in chunk
        or b"\r" in chunk
    ):
        return 0
    if b'": ' not in chunk:  # As most servers write it: without blanks.
        return events if chunk.count(b'"content":"') == events else 0
    if (
        chunk.count(b'"content":"') + chunk.count(b'"content": "') != events
        or b'"content": ""' in chunk
        or b'"finish_reason": "' in chunk
        or b'"tool_calls": [{' in chunk
        or b'"usage": {' in chunk
    ):
        return 0
    return events


AT_ITS_ENDS = 4
"""Events that may come with an answer's last text: its end, usage, ``[DONE]``, and one more."""


def middle(chunk: bytes) -> tuple[int, int]:
    """Where in whole events the ordinary ones may begin and end: without the first, if it is not
    ordinary, and the last few that are not."""
    if not chunk.endswith(b"\n\n"):
        return 0, 0
    start = chunk.find(b"\n\n") + 2
    if ordinary(chunk[:start]):
        start = 0
    end = len(chunk)
    for _ in range(AT_ITS_ENDS):
        cut = max(chunk.rfind(b"\n\n", start, end - 2) + 2, start)
        if end <= start or ordinary(chunk[cut:end]):
            break
        end = cut
    return start, end


def looks_whole(chunk: bytes) -> bool:
    """Whether brackets and quotes pair up, as they do in JSON without escapes."""
    return (
        b"\\" not in chunk
        and chunk.count(b"{") == chunk.count(b"}")
        and chunk.count(b"[") == chunk.count(b"]")
        and not chunk.count(b'"') % 2
    )


def no_events(chunk: bytes) -> bool:
    """Whether a body that begins so holds no server-sent events: no field starts with a bracket."""
    return chunk.lstrip()[:1] in (b"{", b"[", b"<")

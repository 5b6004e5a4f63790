"""One answer's text, token by token: whole characters only, and where a stop string ends it.

Knows bytes, UTF-8 and stop strings; deliberately not tokens or HTTP.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text that may be sent.

    A character is shown once all its bytes are there; text that could be the start of a stop string
    is held back. The stop string itself is never shown.
    """

    __slots__ = ("_decoder", "_hold", "_pending", "_stop", "sent", "stopped")

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._hold = max((len(s) for s in stop), default=1) - 1
        self._pending = ""
        self.sent = 0
        """Characters shown so far."""
        self.stopped = False
        """Whether a stop string was found; nothing is shown after that."""

    def push(self, piece: bytes) -> tuple[str, str]:
        """Add one token's bytes. Returns its own text and what may be shown now.

        The token's own text is "" while its last character is incomplete.
        """
        own = self._decoder.decode(piece)
        if not self._stop:
            self.sent += len(own)
            return own, own
        text = self._pending + own
        found = [at for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self.stopped = True
            shown, self._pending = text[: min(found)], ""
        else:
            keep = next(
                n
                for n in range(min(self._hold, len(text)), -1, -1)
                if n == 0 or any(s.startswith(text[-n:]) for s in self._stop)
            )
            shown, self._pending = text[: len(text) - keep], text[len(text) - keep :]
        self.sent += len(shown)
        return own, shown

    def finish(self) -> str:
        """What was held back, at the end of an answer that no stop string ended."""
        rest = "" if self.stopped else self._pending + self._decoder.decode(b"", True)
        self._pending = ""
        self.sent += len(rest)
        return rest

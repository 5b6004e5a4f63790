"""How long a larger target would have taken. Pure arithmetic on seconds and tokens.

Knows what a step, a prompt and a request cost; deliberately not the clock: ``batching.py`` and
``server.py`` wait until the deadlines that follow from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of the imitated target. All zero, the default, is as fast as this machine goes."""

    ttft: float = 0.0
    """Seconds that every request waits before it is looked at (queueing)."""
    tpot: float = 0.0
    """Seconds of a decode step with few sequences in it."""
    rtt: float = 0.0
    """Seconds of network, once a request: half before it is seen, half before its answer is."""
    prefill: float = 0.0
    """Prompt tokens a second that aren't in the prefix cache; 0 means prompts are free."""
    load: float = 0.0
    """Seconds that each token in the batch adds to a step, once that exceeds ``tpot``."""

    @classmethod
    def parse(cls, text: str) -> Pace:
        """Read ``ttft=0.1,tpot=40ms,rtt=10ms,prefill=10000,load=0.5ms``.

        Times are seconds, or milliseconds with ``ms``. ``ValueError`` names the bad part.
        """
        known = [f.name for f in fields(cls)]
        values: dict[str, float] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, number = (p.strip() for p in part.partition("="))
            if name not in known or not equals:
                raise ValueError(f"pace: expected one of {', '.join(known)} and '=', got {part!r}")
            scale = 1.0
            if name != "prefill" and number.endswith("ms"):
                number, scale = number[:-2], 1e-3
            elif name != "prefill" and number.endswith("s"):
                number = number[:-1]
            try:
                value = float(number) * scale
            except ValueError:
                value = -1.0
            if not 0 <= value < 1e9:
                unit = "tokens a second" if name == "prefill" else "seconds"
                raise ValueError(f"pace: expected a number of {unit} ≥ 0, got {part!r}")
            values[name] = value
        return cls(**values)

    def __str__(self) -> str:
        return ",".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self))

    def step(self, prompt_tokens: int, sequences: int) -> float:
        """Seconds of a step that also computes ``prompt_tokens`` and advances ``sequences``.

        ``prompt_tokens / prefill + max(tpot, load * sequences)``, without the second term where
        nothing is decoded.
        """
        seconds = prompt_tokens / self.prefill if self.prefill else 0.0
        return seconds + max(self.tpot, self.load * sequences) if sequences else seconds

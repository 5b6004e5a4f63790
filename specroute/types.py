"""The frozen values and names that every layer shares. No I/O, no third-party import.

Knows what a method, an exactness label, a target, a usage and a report *are*; deliberately not how
any of them comes about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Method(StrEnum):
    """How a target is used for one request (one word each, as reports and configs spell it)."""

    PLAIN = "plain"
    """One ordinary call. Always possible; the yardstick for everything else."""
    SCORE = "score"
    """Drafted tokens are sent as prompt text and judged by the logprobs that come back."""
    PREFIX = "prefix"
    """Streams started beside the plain one, from drafted prefixes."""
    PREDICT = "predict"
    """One call that carries the drafted answer as ``prediction``."""
    CASCADE = "cascade"
    """A whole drafted answer is scored once, and the target goes on from what stands of it."""
    JUDGE = "judge"
    """The target reads a drafted answer and says how far it is good enough."""
    RACE = "race"
    """Draft and target start together; the draft's answer is used if both begin alike."""
    HEDGE = "hedge"
    """A plain call, and a second one where the first token is late."""


class Exactness(StrEnum):
    """What is guaranteed about the answer's text, from strict to loose.

    ``EXACT``: distributed as the target's own answer. ``EXACT_GREEDY``: the same at temperature 0,
    the target's own argmax at every position as the server computes it while scoring. ``BOUNDED``:
    exact up to a stated bound or reason. ``HEURISTIC``: no guarantee.
    """

    EXACT = "exact"
    EXACT_GREEDY = "exact-greedy"
    BOUNDED = "bounded"
    HEURISTIC = "heuristic"

    @property
    def rank(self) -> int:
        """0 for the strictest; a floor ``f`` admits a label ``x`` iff ``x.rank <= f.rank``."""
        return {"exact": 0, "exact-greedy": 0, "bounded": 1, "heuristic": 2}[self.value]


@dataclass(frozen=True, slots=True)
class TargetRef:
    """A model at a provider, written ``provider:model`` (split at the first colon)."""

    provider: str
    model: str

    @classmethod
    def parse(cls, text: str) -> TargetRef:
        """Split ``provider:model``; ``ValueError`` where either side is missing."""
        provider, colon, model = text.partition(":")
        if not (provider and colon and model):
            raise ValueError(f"expected 'provider:model', got {text!r}")
        return cls(provider, model)

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as the server counted them. ``None`` is unknown, never 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens read from the server's cache; part of ``prompt_tokens``."""
    accepted_prediction_tokens: int | None = None
    """Tokens of a ``prediction`` that appeared in the answer."""
    rejected_prediction_tokens: int | None = None
    """Those that did not; part of ``completion_tokens``, as they are billed as output."""

    @classmethod
    def from_wire(cls, usage: Any) -> Usage:
        """Read an OpenAI-format ``usage`` object; anything unreadable becomes ``None``."""
        if not isinstance(usage, dict):
            return cls()
        details = usage.get("prompt_tokens_details")
        made = usage.get("completion_tokens_details")
        made = made if isinstance(made, dict) else {}
        return cls(
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            _count(details.get("cached_tokens")) if isinstance(details, dict) else None,
            _count(made.get("accepted_prediction_tokens")),
            _count(made.get("rejected_prediction_tokens")),
        )

    @classmethod
    def sum(cls, usages: Iterable[Usage]) -> Usage:
        """Prompt, completion and cached tokens of several calls; ``None`` where one is not known,
        or there are none."""
        each = list(usages)
        return cls(
            _total([usage.prompt_tokens for usage in each]),
            _total([usage.completion_tokens for usage in each]),
            _total([usage.cached_tokens for usage in each]),
        )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request that left for a target (or a draft provider), and what became of it."""

    target: str
    """``provider:model``."""
    purpose: str
    """``plain``, ``score``, ``lane``, ``predict``, ``handover``, ``calibrate``, ``render``,
    ``draft``, ``shadow``."""
    outcome: str
    """``ok``, ``cancelled``, or the error's short name (``status 429``, ``connect`` …)."""
    seconds: float
    usage: Usage = Usage()
    request_id: str | None = None
    estimated: bool = False
    """True: tokens were counted here, because the server's own count never came (a stream that was
    ended early shows none)."""
    drafted: int = 0
    """Of a scoring request's prompt, the tokens of the draft: new to every cache."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one request did, what it cost and what is guaranteed about the answer.

    Seconds are wall-clock; tokens are the target's; ``None`` is unknown, never 0. Sums over
    ``attempts`` give the ``billed_*`` fields. Acceptance rate is accepted / drafted, as in vLLM.
    """

    id: str
    model: str
    """The name the caller asked for."""
    target: str | None = None
    """``provider:model`` that answered."""
    method: str = Method.PLAIN.value
    exactness: str = Exactness.EXACT.value
    exactness_reason: str | None = None
    """For ``bounded``: the bound or its reason; for ``heuristic``: why."""
    expected_agreement: float | None = None
    """For a calibrated lossy rule (``specroute calibrate``): the share of whole drafts whose kept
    part is expected to be what the target would have said itself, at least."""
    plan_reason: str = ""
    """One sentence: why this plan."""
    predicted_s: float | None = None
    predicted_usd: float | None = None
    """What the chosen plan was expected to take; ``total_s`` and ``cost_usd`` are what it took."""
    plain_s: float | None = None
    plain_usd: float | None = None
    """What a plain call was expected to take; at the end, what one would have taken by the pace
    known at the start for the tokens that came (``None``: nothing came, or nothing was planned)."""
    notes: tuple[str, ...] = ()
    """Decisions taken on the way: fallbacks, refused evidence, failed drafts."""
    complete: bool = False
    """False until the answer has ended (a stream's report is live until then)."""
    finish_reason: str | None = None
    error: str | None = None
    drafter: str | None = None
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    """Drafted tokens that were judged and refused; tokens after a rejection were never judged."""
    ttft_s: float | None = None
    """Request start to the first committed text."""
    first_text_s: float | None = None
    """Request start to the first drafted text shown to a caller of ``client.speculate``; ``None``
    where committed text came first, or no other was asked for."""
    tpot_s: float | None = None
    """Mean seconds per token after the first."""
    total_s: float | None = None
    draft_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """What a plain call's ``usage`` would have shown."""
    billed_prompt_tokens: int | None = None
    billed_cached_tokens: int | None = None
    billed_completion_tokens: int | None = None
    """What was really used, every request counted."""
    cost_usd: float | None = None
    attempts: tuple[Attempt, ...] = field(default=())

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted, ``None`` when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def alpha(self) -> float | None:
        """Estimated per-token acceptance: accepted / (accepted + rejected), judged tokens only."""
        judged = self.accepted + self.rejected
        return self.accepted / judged if judged else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds, ``None`` without a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """The inverse of :meth:`as_dict`; unknown keys are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["notes"] = tuple(known.get("notes", ()))
        known["attempts"] = tuple(
            Attempt(**{**a, "usage": Usage(**a["usage"])}) for a in known.get("attempts", ())
        )
        return cls(**known)

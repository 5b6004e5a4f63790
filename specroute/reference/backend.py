"""What a source of tokens must be able to do for the server: the seam between HTTP and logits.

Knows the shape of one step's work and of a next-token distribution; deliberately not where the
numbers come from (``script.py``, ``model.py``), how requests are batched or what goes on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specroute.reference.sampling import Settings

Top = list[tuple[int, float]]
"""``(id, logprob)`` pairs, most likely first, ties by id."""

Entry = tuple[float, Top]
"""A token's own raw logprob, and the top-N at its position."""

Message = dict[str, Any]
"""A chat message whose ``content`` is already one string."""


class InvalidPrompt(ValueError):
    """The backend can't turn this request into a prompt; the message says why, for the caller."""


class Scores(Protocol):
    """One position's next-token distribution. Logprobs are raw: before bias and temperature."""

    def greedy(self, bias: dict[int, float]) -> int:
        """The most likely id after adding ``bias`` to the logits; ties go to the lowest id."""

    def draw(self, settings: Settings, bias: dict[int, float], u: float) -> int:
        """The id at quantile ``u`` (in [0, 1)) of the distribution that ``settings`` shape."""

    def logprob(self, token: int) -> float:
        """Natural log of the raw probability of ``token``; ``-inf`` where it is 0."""

    def top(self, n: int) -> Top:
        """The ``n`` most likely ids."""

    def scaled(self, temperature: float) -> Scores:
        """The same after ``temperature`` > 0."""


@dataclass(slots=True, eq=False)
class State:
    """What a backend remembers of one sequence. Each backend extends it; nobody else looks in."""

    ids: list[int] = field(default_factory=list)
    """Every token so far, fed or not. Grows while the sequence runs; never shrinks."""
    computed: int = 0
    """How many leading ids have been fed, or will have been when the step under way is over."""


@dataclass(slots=True)
class Work:
    """One sequence's part of a step: feed ``state.ids[start:]``, return what follows."""

    state: State
    start: int
    """How many leading ids are computed already: in the state itself, or in ``parent``."""
    parent: State | None = None
    """On a sequence's first step: the state whose first ``start`` positions are shared."""
    score: int | None = None
    """Echo: also score every fed id but the first, with this many top alternatives."""
    scored: list[Entry] = field(default_factory=list)
    """Filled in by the backend iff ``score`` is set: one entry for each id after the first."""
    scores: Scores | None = None
    """Filled in by the backend: the distribution after the last id."""


class Backend(Protocol):
    """A tokenizer and a next-token distribution. Called from one thread at a time for ``run``."""

    name: str
    """What ``/v1/models`` calls it when nothing else was asked for."""
    inline: bool
    """True where ``run`` takes microseconds and may be called on the event loop."""
    max_len: int
    """Longest prompt plus answer, in tokens."""
    size: int
    """Ids are ``0 … size - 1``."""
    eos: frozenset[int]
    memory: int
    """How many tokens' states may be kept for later requests that begin alike."""

    def encode(self, text: str, special: bool) -> list[int]:
        """Tokenise; ``special`` adds what the tokenizer puts around a prompt (BOS)."""

    def piece(self, token: int) -> bytes:
        """The bytes that ``token`` adds to a text; special tokens give their name."""

    def is_special(self, token: int) -> bool:
        """Whether generated text leaves ``token`` out."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        generate: bool,
        prefill: str | None,
        tools: list[Any] | None,
    ) -> str:
        """The chat template's text; ``prefill`` opens the assistant's turn and is its start.

        Raises :class:`InvalidPrompt` where there is no template or it refuses the messages.
        """

    def new_state(self, ids: list[int]) -> State:
        """A state that has computed nothing yet."""

    def run(self, works: Sequence[Work]) -> None:
        """Do one step for all of ``works``, in order: later ones may name earlier ones as parent.

        May run in another thread than everything else here.
        """

    def tool_name(self, prompt: str) -> str | None:
        """The tool that the answer to ``prompt`` calls (scripts only); ``None`` for plain text."""

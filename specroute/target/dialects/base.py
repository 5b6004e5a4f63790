"""What a scoring dialect is: one question to a target about a draft, and how to read the answer.

Knows the question (:class:`Ask`), what leaves for the server (:class:`Request`) and what kind of
evidence comes back (:class:`Shows`). Deliberately knows no wire format, no rule of acceptance and
no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from specroute.profiles import Capabilities
from specroute.target.view import View

Form = Literal["ids", "text", "chat"]
"""How the context goes out: token ids, rendered text, or messages that the server renders."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A draft to be scored after a context; exactly one of ``ids``, ``text``, ``messages`` is set.

    ``ids`` and ``text`` are the prompt with the committed answer behind it. With ``messages`` the
    prompt is the chat itself, and ``committed`` the answer so far. The draft has the context's
    form: ids, or text. An empty draft asks for ``max_tokens`` tokens of the target's own.
    """

    model: str
    draft: tuple[int, ...] | str
    ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    committed: str = ""
    logprobs: int = 1
    """N: alternatives wanted at each position, at least 1."""
    max_tokens: int = 1
    """Tokens to be generated behind the draft, at least 1."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The caller's own sampling fields, for the tokens that are generated."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    pieces: tuple[str, ...] = ()
    """A text draft cut where the drafter's tokens end, for dialects that ask once per token;
    without them such a draft is one piece."""
    templated: bool = False
    """``text`` was made by a chat template, so it has its special tokens already."""

    def __post_init__(self) -> None:
        given = [value is not None for value in (self.ids, self.text, self.messages)]
        if sum(given) != 1:
            raise ValueError("an Ask has ids, text or messages, exactly one of them")
        if isinstance(self.draft, str) is (self.ids is not None):
            raise ValueError("the draft has to be ids after ids, and text after anything else")
        if self.pieces and "".join(self.pieces) != self.draft:
            raise ValueError("the pieces do not join to the draft")
        if self.logprobs < 1 or self.max_tokens < 1:
            raise ValueError("logprobs and max_tokens are at least 1")

    @property
    def form(self) -> Form:
        """How the context goes out."""
        return "ids" if self.ids is not None else "text" if self.text is not None else "chat"

    @property
    def by_ids(self) -> bool:
        """Tokens are named by id."""
        return self.ids is not None

    @property
    def draft_ids(self) -> tuple[int, ...]:
        """The draft of an ids Ask."""
        assert not isinstance(self.draft, str)
        return self.draft

    @property
    def draft_text(self) -> str:
        """The draft of a text or chat Ask."""
        assert isinstance(self.draft, str)
        return self.draft

    @property
    def sent_ids(self) -> tuple[int, ...]:
        """Context and draft of an ids Ask."""
        return (*(self.ids or ()), *self.draft_ids)

    @property
    def sent_text(self) -> str:
        """Context and draft of a text Ask."""
        return (self.text or "") + self.draft_text


@dataclass(frozen=True, slots=True)
class Joins:
    """How a request can share one with others that are like it.

    ``each``: the fields of which every prompt has its own, the prompt's (or prompts') first.
    ``answers``: where one answer a prompt stands: ``choices`` of one object; a list of objects
    (``listed``); or such a list where a request of one prompt has its object bare (``bare``).
    ``numbered``: each says by ``index`` which prompt it is for; else they come in their order.
    """

    each: tuple[str, ...] = ("prompt",)
    answers: Literal["choices", "listed", "bare"] = "choices"
    numbered: bool = True

    @property
    def answers_in(self) -> str:
        """The field that holds the answers, as they are read."""
        return "choices" if self.answers == "choices" else "answers"


@dataclass(frozen=True, slots=True)
class Request:
    """What to POST, and where. ``root``: the path starts at the server's root, not at its API.
    ``listed``: the answer may be a JSON list, which is then read as ``{"answers": list}``.
    ``joins``: how it may share a request; ``None``: not at all."""

    path: str
    payload: dict[str, Any]
    root: bool = False
    listed: bool = False
    joins: Joins | None = None


@dataclass(frozen=True, slots=True)
class Shows:
    """The evidence that a dialect gives, and what it costs."""

    argmax: bool = True
    """The most probable token at every position."""
    top_n: bool = True
    """The N most probable ones with their log-probabilities."""
    drafted: bool = True
    """The drafted token's own log-probability, however small."""
    samples: bool = False
    """The server's own draw at every position, under the caller's sampling settings."""
    keeps_cache: bool | None = False
    """A round reads the server's prefix cache; ``None``: not known."""
    per_position: bool = False
    """A round is one prompt, and one answer, per drafted token and one more."""

    def prompts(self, k: int) -> int:
        """How many times a round over K drafted tokens bills its prompt."""
        return k + 1 if self.per_position else 1

    def output_tokens(self, k: int, max_tokens: int) -> int:
        """Output tokens that a round over K drafted tokens bills, at most."""
        return self.prompts(k) * max_tokens


class Dialect(Protocol):
    """One way of asking a server for its view of a draft."""

    @property
    def name(self) -> str:
        """As profiles spell it in ``score``."""

    @property
    def needs_ids(self) -> bool:
        """It works with token ids alone."""

    @property
    def shows(self) -> Shows:
        """What comes back."""

    def forms(self, capabilities: Capabilities) -> tuple[Form, ...]:
        """How its context may go out to such a server, best first; empty: it can't be used."""

    def request(self, ask: Ask) -> Request:
        """The request; :class:`~specroute.target.view.BadEvidence` where it can't be put."""

    def view(self, data: Mapping[str, Any], ask: Ask, seconds: float) -> View:
        """Read the answer; :class:`~specroute.target.view.BadEvidence` where it can't be the
        target's view of what was sent. ``seconds``: how long it took."""

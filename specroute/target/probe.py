"""The probe: what a server can do, found out by what it does.

Knows how calls are made, counted and read, and what a finding is. What is asked, ``checks`` knows;
what profile and config say, and where results are kept, neither does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specroute.errors import StatusError
from specroute.probed import overlaid
from specroute.profiles import PREFILL_DIALECTS, Capabilities
from specroute.request import CHAT
from specroute.target.target import Target
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.client import HttpClient
    from specroute.http.deadline import Deadline
    from specroute.target.learned import Trusted


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen. ``field``: a capability, or a measurement's name. ``value`` ``None``: the
    check could not tell; ``how`` says what was done and what came back."""

    field: str
    value: Any
    how: str


@dataclass(slots=True)
class Probed:
    """All findings, and what they cost."""

    findings: list[Finding] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """A finding's value, ``None`` where there is none."""
        return next((f.value for f in self.findings if f.field == name), None)

    def capabilities(self, profile: Capabilities) -> Capabilities:
        """``profile`` with what was seen laid over it; what could not be told stays."""
        return overlaid(profile, {f.field: f.value for f in self.findings})


Check = Callable[["Probe"], Awaitable[list[Finding]]]


class Probe:
    """One run against one model. ``told`` hears the name of each check as it begins."""

    def __init__(
        self,
        target: Target,
        vocabularies: Sequence[Vocabulary],
        book: Book,
        deadline: Callable[[], Deadline],
        told: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.target = target
        self.vocabularies = vocabularies
        self.book = book
        self.deadline = deadline
        self.told = told
        self.found: list[Finding] = []
        self.refusals: set[int] = set()
        """The error statuses that came back."""
        self.answer = ""
        """The target's own greedy answer to the checks' question."""
        self.trial: Target | None = None
        """The target as it was calibrated."""
        self.scored: tuple[Target, Trusted] | None = None
        """The target as it was calibrated, and the dialect that shows its view of a prompt."""
        self.tokens_param = target.capabilities.max_tokens_param
        self.prefills: Sequence[str] = PREFILL_DIALECTS
        """The prefill dialects to try."""

    @property
    def http(self) -> HttpClient:
        return self.target.http

    async def run(self, checks: Sequence[Check]) -> Probed:
        """Every check in turn. A server that can't be reached raises; a check that the server
        refuses is a finding."""
        for check in checks:
            self.told(check.__name__.strip("_").replace("_", " "))
            self.found += await check(self)
        return Probed(self.found)

    async def post(self, path: str, body: dict[str, Any], *, root: bool = False) -> Reply:
        """One call; an error status is an answer, too."""
        try:
            with self.book.attempt(str(self.target.ref), "probe") as entry:
                reply = await self.http.post_json(
                    path,
                    {"model": self.target.ref.model, **body},
                    self.deadline(),
                    root=root,
                    purpose="probe",
                )
                told = Usage.from_wire(reply.data.get("usage"))
                entry.usage = Usage(0, 0, 0) if root else told
        except StatusError as error:
            if error.status in (401, 403):
                raise
            self.refusals.add(error.status)
            return Reply(error.status, {}, 0.0, str(error)[:120])
        return Reply(200, reply.data, reply.seconds, "200")

    async def chat(self, content: str, tokens: int, **body: Any) -> Reply:
        messages = body.pop("messages", [{"role": "user", "content": content}])
        given = {"messages": messages, "temperature": 0, self.tokens_param: tokens, **body}
        return await self.post(CHAT, given)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer's status, JSON, seconds, and a few words on it."""

    status: int
    data: dict[str, Any]
    seconds: float
    said: str

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def choices(self) -> list[dict[str, Any]]:
        found = self.data.get("choices")
        return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []

    @property
    def text(self) -> str:
        """The first choice's text."""
        if not self.choices:
            return ""
        message = self.choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else self.choices[0].get("text")
        return text if isinstance(text, str) else ""

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Chat logprob entries of the first choice."""
        logprobs = self.choices[0].get("logprobs") if self.choices else None
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        return [e for e in content if isinstance(e, dict)] if isinstance(content, list) else []

"""The probe: what a server can do, found out by what it does.

Each check is one function that makes a few small calls and returns findings. Knows the questions
and how to read the answers; what profile and config say, and where results are kept, it doesn't.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specroute.errors import StatusError
from specroute.probed import overlaid
from specroute.profiles import PREFILL_DIALECTS, Capabilities
from specroute.request import CHAT, COMPLETIONS
from specroute.target import prefill
from specroute.target.calibration import calibrate
from specroute.target.dialects import DIALECTS
from specroute.target.stream import pieces
from specroute.target.target import Target
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.client import HttpClient
    from specroute.http.deadline import Deadline

QUESTION = "List the months of the year, separated by commas."
SENTENCE = "The quick brown fox jumps over the lazy dog and runs away."
STRANGE = "Zebra!"
LONG_REPEATS = 40
ANSWER_TOKENS = 16
REPEATS = 3
LOGPROB_LIMITS = (20, 5, 1)
ESTIMATE = {"prompt": 3000, "completion": 400, "calls": 45}
"""About what a probe uses, for the caller to show beforehand."""


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
        """The target's own greedy answer to :data:`QUESTION`."""
        self.tokens_param = target.capabilities.max_tokens_param
        self.prefills: Sequence[str] = PREFILL_DIALECTS
        """The prefill dialects to try."""

    @property
    def http(self) -> HttpClient:
        return self.target.http

    async def run(self, checks: Sequence[Check] | None = None) -> Probed:
        """Every check in turn, or those given. A server that can't be reached raises; a check that
        the server refuses is a finding."""
        for check in CHECKS if checks is None else checks:
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


async def chat_answer(probe: Probe) -> list[Finding]:
    """Does /chat/completions answer, and by which name does it take a token limit?"""
    reply = await probe.chat(QUESTION, ANSWER_TOKENS)
    if not reply.ok and probe.tokens_param == "max_tokens":
        probe.tokens_param = "max_completion_tokens"
        reply = await probe.chat(QUESTION, ANSWER_TOKENS)
    if not reply.ok:
        return [Finding("chat", False, reply.said)]
    probe.answer = reply.text
    return [
        Finding("chat", True, f"answered {reply.text[:30]!r}"),
        Finding("max_tokens_param", probe.tokens_param, "accepted"),
    ]


async def _completions(probe: Probe) -> list[Finding]:
    """Is /completions there, with id prompts and lists of prompts?"""
    one = {"max_tokens": 4, "temperature": 0}
    text = await probe.post(COMPLETIONS, {"prompt": SENTENCE, **one})
    if not text.ok:
        return [Finding("completions", False, text.said)]
    ids = await probe.post(COMPLETIONS, {"prompt": [100, 101, 102], **one})
    both = await probe.post(COMPLETIONS, {"prompt": [SENTENCE, QUESTION], **one})
    return [
        Finding("completions", True, f"continued with {text.text[:30]!r}"),
        Finding("id_prompts", ids.ok, ids.said),
        Finding("list_prompts", both.ok and len(both.choices) == 2, both.said),
    ]


async def _logprobs(probe: Probe) -> list[Finding]:
    """How many chat logprobs, with ids, and before or after temperature?"""
    found: list[Finding] = []
    most = 0
    for n in LOGPROB_LIMITS:
        reply = await probe.chat(QUESTION, 2, logprobs=True, top_logprobs=n)
        if reply.ok:
            tops = [len(e.get("top_logprobs") or ()) for e in reply.shown]
            most = max(tops, default=0)
            break
    found.append(Finding("chat_max_logprobs", most, f"{most} alternatives came back"))
    if not most:
        return found
    named = await probe.chat(
        QUESTION, 2, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True
    )
    shows = bool(named.shown) and str(named.shown[0].get("token")).startswith("token_id:")
    if shows:
        found.append(Finding("token_ids_param", "return_tokens_as_token_ids", "ids came back"))
    warm = await probe.chat(QUESTION, 1, logprobs=True, top_logprobs=most, temperature=1.0)
    hot = await probe.chat(QUESTION, 1, logprobs=True, top_logprobs=most, temperature=0.5)
    a, b = (
        {t.get("token"): t.get("logprob") for t in r.shown[0].get("top_logprobs") or ()}
        if r.shown
        else {}
        for r in (warm, hot)
    )
    gaps = [abs(a[t] - b[t]) for t in a if t in b and min(a[t], b[t]) > -20]
    if gaps and max(a.values()) < -0.01:
        kind = "raw" if max(gaps) < 0.1 else "processed"
        found.append(Finding("logprobs", kind, f"T 1 and T 0.5 differ by {max(gaps):.2f} nats"))
    return found


async def _template(probe: Probe) -> list[Finding]:
    """Will the server render a chat prompt?"""
    messages = [{"role": "user", "content": QUESTION}]
    ids = await probe.post(
        "/tokenize", {"messages": messages, "add_generation_prompt": True}, root=True
    )
    if ids.ok and isinstance(ids.data.get("tokens"), list) and ids.data["tokens"]:
        limit = ids.data.get("max_model_len")
        return [
            Finding("template", "tokenize", f"{len(ids.data['tokens'])} ids"),
            Finding("max_model_len", limit, "as /tokenize states it"),
        ]
    text = await probe.post("/apply-template", {"messages": messages}, root=True)
    if text.ok and isinstance(text.data.get("prompt"), str):
        found = [Finding("template", "apply-template", f"{text.data['prompt'][:30]!r}")]
        cut = await probe.post("/tokenize", {"content": SENTENCE, "add_special": True}, root=True)
        if cut.ok and isinstance(cut.data.get("tokens"), list) and cut.data["tokens"]:
            found.append(Finding("tokenize", "content", f"{len(cut.data['tokens'])} ids"))
        return found
    return [Finding("template", None, f"/tokenize {ids.said}, /apply-template {text.said}")]


async def top_n(probe: Probe) -> list[Finding]:
    """How many logprobs does /completions give?"""
    for n in LOGPROB_LIMITS:
        reply = await probe.post(
            COMPLETIONS, {"prompt": SENTENCE, "max_tokens": 1, "temperature": 0, "logprobs": n}
        )
        if reply.ok:
            most = _alternatives(reply)
            return [Finding("echo_max_logprobs", most, f"{most} alternatives came back")]
    return []


async def _scoring(probe: Probe) -> list[Finding]:
    """Which dialects of scoring agree with what the target itself generates?"""
    found: list[Finding] = []
    seen = Probed([*probe.found, *found]).capabilities(probe.target.capabilities)
    caps = replace(seen, score=tuple(DIALECTS))
    trial = Target(probe.target.ref, probe.http, caps, probe.target.tokenizer)
    await calibrate(trial, probe.vocabularies, probe.book, probe.deadline())
    learned = trial.learned
    trusted = [pair for pair in (learned.dialect, learned.sampler) if pair is not None]
    names = [dialect.name for dialect, _ in trusted]
    how = ", ".join(f"{dialect.name} by {form}" for dialect, form in trusted)
    found.append(Finding("score", names, f"agrees: {how}" if names else learned.reason))
    for name, why in learned.refused.items():
        found.append(Finding(f"not scored by {name}", None, why))
    by_ids = any(form == "ids" for _, form in trusted)
    if names:
        found.append(
            Finding("scores_by_ids", by_ids, "a vocabulary with the server's ids is known")
        )
    return found


def _alternatives(reply: Reply) -> int:
    """Alternatives at the first generated token, in either layout."""
    shown = reply.choices[0].get("logprobs") if reply.choices else None
    if not isinstance(shown, dict):
        return 0
    tops = shown.get("top_logprobs")
    if isinstance(shown.get("content"), list) and shown["content"]:
        tops = [shown["content"][0].get("top_logprobs")]
    return len(tops[0]) if isinstance(tops, list) and tops and tops[0] else 0


async def prefill_kept(probe: Probe) -> list[Finding]:
    """Is a trailing assistant message continued: in which dialect, repeated, trimmed?"""
    words = probe.answer.split(" ")
    if len(words) < 4:
        return [Finding("prefill", None, "its own answer is too short to try")]
    half = " ".join(words[: len(words) // 2])
    rest = probe.answer[len(half) :]
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    # The one without flags first: a server that needs none ignores them.
    for dialect in sorted(probe.prefills, key=lambda name: name != "trailing_assistant"):
        # Only a server that repeats the prefill would say a word that isn't the model's own.
        strange = await probe.chat(
            "", ANSWER_TOKENS, **prefill.continued(asked, f"{STRANGE} {half}", dialect)
        )
        repeats = strange.text.startswith(STRANGE)
        reply = await probe.chat("", ANSWER_TOKENS, **prefill.continued(asked, half, dialect))
        text = reply.text.removeprefix(half) if repeats else reply.text
        start = rest.strip()[:8]
        if reply.ok and start and text.strip().startswith(start):
            return [
                Finding("prefill", dialect, f"went on with {text[:20]!r}"),
                Finding("prefill_repeats", repeats, f"{reply.text[:20]!r}"),
            ]
    return [Finding("prefill", "none", "no dialect went on as its own answer does")]


async def _prediction(probe: Probe) -> list[Finding]:
    """Is ``prediction`` taken, and does usage count it?"""
    reply = await probe.chat(
        QUESTION, ANSWER_TOKENS, prediction={"type": "content", "content": probe.answer}
    )
    details = (reply.data.get("usage") or {}).get("completion_tokens_details") or {}
    counted = isinstance(details, dict) and details.get("accepted_prediction_tokens")
    if counted:
        return [Finding("prediction", True, f"{counted} tokens accepted")]
    return [Finding("prediction", False, "ignored" if reply.ok else reply.said)]


async def _caching(probe: Probe) -> list[Finding]:
    """Does usage show cached prompt tokens, and does scoring keep the cache?"""
    long = f"{SENTENCE} " * LONG_REPEATS + QUESTION
    replies = [await probe.chat(long, 1) for _ in range(2)]
    cached = [Usage.from_wire(r.data.get("usage")).cached_tokens for r in replies]
    found = [Finding("cached_tokens", cached[1] is not None, f"cached_tokens: {cached[1]}")]
    if len(replies) == 2 and all(r.ok for r in replies):
        gained = replies[0].seconds - replies[1].seconds
        found.append(Finding("reprefill_s", round(max(gained, 0.0), 4), "first minus second call"))
    return found


async def _pace(probe: Probe) -> list[Finding]:
    """Usage on streams, TTFT and TPOT, the round trip, and disagreement with itself at T = 0."""
    found: list[Finding] = []
    firsts: list[float] = []
    steps: list[float] = []
    texts: list[str] = []
    counted: bool | None = None
    for _ in range(REPEATS):
        deadline = probe.deadline()
        body: dict[str, Any] = {
            "model": probe.target.ref.model,
            "messages": [{"role": "user", "content": QUESTION}],
            probe.tokens_param: ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        if counted is not False:
            body["stream_options"] = {"include_usage": True}
        times: list[float] = []
        text = ""
        try:
            async for piece in pieces(
                probe.http, CHAT, body, target=str(probe.target.ref), purpose="probe",
                book=probe.book, deadline=deadline,
            ):  # fmt: skip
                if piece.text:
                    times.append(deadline.clock())
                    text += piece.text
                if piece.usage is not None:
                    counted = True
        except StatusError:
            if counted is None:
                counted = False
                continue
            raise
        counted = bool(counted)
        if times:
            firsts.append(times[0] - deadline.started)
            texts.append(text)
        if len(times) > 1:
            steps.append((times[-1] - times[0]) / (len(times) - 1))
    found.append(Finding("stream_usage", counted, "stream_options.include_usage"))
    if firsts:
        found.append(Finding("ttft_s", round(statistics.median(firsts), 4), f"of {len(firsts)}"))
    if steps:
        found.append(Finding("tpot_s", round(statistics.median(steps), 5), "per piece of text"))
    if texts:
        differ = sum(text != texts[0] for text in texts[1:])
        share = f"{differ} of {len(texts) - 1} repeats differ"
        found.append(Finding("disagrees_with_itself", differ / max(len(texts) - 1, 1), share))
    smallest = [await probe.chat(".", 1) for _ in range(REPEATS)]
    seconds = [r.seconds for r in smallest if r.ok]
    if seconds:
        found.append(Finding("r_s", round(min(seconds), 4), "the quickest one-token call"))
    return found


CHECKS: tuple[Check, ...] = (
    chat_answer,
    _completions,
    _logprobs,
    _template,
    top_n,
    _scoring,
    prefill_kept,
    _prediction,
    _caching,
    _pace,
)

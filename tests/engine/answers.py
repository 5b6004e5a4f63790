"""A scripted target that says one known text, drafts that follow it in part, and plain answers.

Knows how to ask the same of a plain and of a speculating client, and how to read what came back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specroute import AsyncSpecRoute, Report, report
from specroute.context import Committed, Prompt
from specroute.draft.base import Proposal
from specroute.reference.script import Script
from specroute.vocabulary import Vocabulary
from tests.support.scripted import ScriptVocabulary

TEXT = "one, two, three, four; one, two, six. The quick brown fox jumps over the lazy dog and rests"
VOCABULARY = ["one", ", ", "two", "three", "four", "; ", "six", ". ", "The ", "quick", " brown",
              " fox", " ju", "mps", " over", " the", " lazy", " dog", " and", " rests", "你", "好"]  # fmt: skip


def script(text: str = TEXT, **more: Any) -> dict[str, Any]:
    """A target that answers everything with ``text``."""
    return {"name": "chain", "vocabulary": VOCABULARY, "answers": [{"text": text}], **more}


class EchoDrafter:
    """Drafts the known answer, wrong at some positions (``wrong``: a share, seeded).

    ``mode``: ``ok``, or one of the ways to fail of :meth:`EchoSession.propose`. ``after``:
    proposals that work before it fails. ``closes``: turns of the loop that a session's end takes.
    """

    name = "table"

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        wrong: float = 0.0,
        seed: int = 0,
        mode: str = "ok",
        after: int = 0,
        text_only: bool = False,
        delay: asyncio.Event | None = None,
    ) -> None:
        self.script = Script(spec)
        self.vocabulary: Vocabulary | None = ScriptVocabulary(self.script)
        (self.eos,) = self.script.eos
        self.answer = [*self.vocabulary.encode(spec["answers"][0]["text"]), self.eos]
        self.wrong, self.seed, self.mode, self.after = wrong, seed, mode, after
        self.text_only, self.delay = text_only, delay
        self.closes = 0
        self.proposals = 0
        self.sessions: list[EchoSession] = []

    async def load(self) -> None:
        if self.mode == "load":
            raise RuntimeError("the weights are gone")

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> EchoSession:
        if self.mode == "open":
            raise RuntimeError("no memory for a cache")
        made = EchoSession(self)
        self.sessions.append(made)
        return made

    async def aclose(self) -> None:
        pass

    @property
    def open_sessions(self) -> int:
        return sum(not made.closed for made in self.sessions)


@dataclass
class EchoSession:
    drafter: EchoDrafter
    closed: bool = False
    calls: list[int] = field(default_factory=list)

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        from specroute.errors import DraftError

        drafter = self.drafter
        vocabulary = drafter.vocabulary
        assert vocabulary is not None
        self.calls.append(k)
        drafter.proposals += 1
        ids = committed.ids
        at = len(ids) if ids is not None else len(vocabulary.encode(committed.text))
        rng = random.Random(f"{drafter.seed}:{at}")
        out = []
        mode = drafter.mode if drafter.proposals > drafter.after else "ok"
        size = k + 3 if mode == "long" else k
        for token in drafter.answer[at : at + size]:
            bad = rng.random() < drafter.wrong
            out.append(rng.randrange(len(VOCABULARY)) if bad else token)
        match mode:
            case "raise":
                raise DraftError("the table has burnt")
            case "crash":
                raise ValueError("an index out of range")
            case "hang":
                await asyncio.Event().wait()
            case "empty":
                return Proposal("")
            case "foreign":
                out = [10**6 for _ in out]
            case "bad_q":
                return Proposal(vocabulary.decode(out), tuple(out), ({},) * len(out))
            case "short_q":
                return Proposal(
                    vocabulary.decode(out), tuple(out), tuple({token: 1.0} for token in out[1:])
                )
        text = vocabulary.decode([i for i in out if i < 10**6])
        if drafter.text_only:
            return Proposal(text)
        return Proposal(text, tuple(out), ended=bool(out) and out[-1] == drafter.eos)

    async def aclose(self) -> None:
        self.closed = True
        for _ in range(self.drafter.closes):
            await asyncio.sleep(0)
        if self.drafter.mode == "close":
            raise OSError("the cache is gone")


@dataclass
class Seen:
    """What a caller saw of one answer."""

    text: str
    finish: str | None
    usage: tuple[int, int] | None
    roles: int = 0
    usage_chunks: int = 0
    order: Sequence[str] = ()
    """``text``, ``finish``, ``usage`` in the order in which they came, repeats left out."""
    report: Report | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.text, self.finish, self.usage, self.roles, self.usage_chunks, self.order)


async def ask(
    client: AsyncSpecRoute,
    *,
    chat: bool = True,
    stream: bool = True,
    prompt: Any = "go",
    include_usage: bool | None = True,
    **body: Any,
) -> Seen:
    """One request by openai's own calls."""
    if chat:
        create: Any = client.chat.completions.create
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        create = client.completions.create
        body["prompt"] = prompt
    body.setdefault("temperature", 0)
    if stream and include_usage is not None:
        body["stream_options"] = {"include_usage": include_usage}
    answer = await create(model="m", stream=stream, **body)
    if not stream:
        choice = answer.choices[0]
        text = choice.message.content if chat else choice.text
        usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return Seen(text or "", choice.finish_reason, usage, report=report(answer))
    seen = Seen("", None, None)
    order: list[str] = []
    async for chunk in answer:
        if chunk.usage is not None:
            seen.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            seen.usage_chunks += 1
            order.append("usage")
        for choice in chunk.choices:
            text = choice.delta.content if chat else choice.text
            if text:
                seen.text += text
                order.append("text")
            if chat and choice.delta.role:
                seen.roles += 1
            if choice.finish_reason:
                assert seen.finish is None
                seen.finish = choice.finish_reason
                order.append("finish")
    seen.order = tuple(dict.fromkeys(order))
    seen.report = report(answer)
    return seen

"""Any configured provider as the drafter: its model goes on with the committed text.

Knows how to ask (``/completions`` for a text prompt, chat with the committed text as prefill for a
chat) and how to read the answer. Deliberately knows no HTTP: it is given a function that posts.
Drafts are text, greedy, and become ids of the target's vocabulary where that is known: any id
sequence is a valid draft, its q a point mass. A model that speaks that vocabulary is asked by ids
(``by_ids``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from specroute.alignment import TextStream, split_trailing_space
from specroute.crossing import said_after, unfinished
from specroute.draft.backoff import Backoff
from specroute.draft.base import Committed, Prompt, Proposal
from specroute.draft.by_ids import Drafted, IdDrafts, NotByIds
from specroute.draft.ngram import split_pieces
from specroute.errors import DraftError, LimitReached, ProviderError
from specroute.http.deadline import Deadline
from specroute.profiles import Capabilities, capabilities_for, load_profile
from specroute.request import CHAT, COMPLETIONS
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specroute.config.values import Timeouts
    from specroute.http.client import HttpClient

RETRY = (10.0, 300.0)
"""Seconds until a provider that failed is asked again: first, most."""
PATIENCE = 20.0
"""Seconds after which a draft is too late to be of use."""
AHEAD = 256
"""Tokens drafted at once where the provider can't be asked to go on from the middle."""

Continued = Callable[[Mapping[str, Any], str, str], dict[str, Any]]
"""(chat body, committed text, prefill dialect) → the body that asks to go on after the text."""


Stream = Callable[[str, Mapping[str, Any]], AsyncGenerator[Mapping[str, Any]]]
"""(path, body) → the chunks of the answer. Raises :class:`ProviderError`."""


class Post(Protocol):
    """Posts JSON to the draft's provider; the answer's JSON. Raises :class:`ProviderError`."""

    async def __call__(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]: ...


Sharing = Callable[["HttpClient", str, Callable[[], Deadline]], Post]
"""(client, model, deadlines) → what posts a prompt, in a list with those that leave with it."""


def remote_drafter(
    name: str,
    model: str,
    http: HttpClient,
    continued: Continued | None = None,
    sharing: Sharing | None = None,
) -> RemoteDrafter:
    """A drafter over a configured provider's client."""
    provider = http.provider
    timeouts = replace(provider.timeouts, total=min(provider.timeouts.total, PATIENCE))

    async def post(path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        reply = await http.post_json(path, payload, Deadline(timeouts), purpose="draft")
        return reply.data

    async def stream(path: str, payload: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any]]:
        async with await http.post_stream(path, payload, Deadline(timeouts)) as events:
            async for event in events:
                yield event.data

    capabilities = capabilities_for(load_profile(provider.profile), provider, model)
    together: Post = post
    if sharing is not None and capabilities.list_prompts:
        together = sharing(http, model, lambda: Deadline(timeouts))
    by_ids = IdDrafts(name, model, capabilities, _Calls(http, timeouts, together))
    return RemoteDrafter(name, model, post, capabilities, continued, stream=stream, by_ids=by_ids)


class _Calls:
    """Calls for drafts by ids, over a provider's client."""

    def __init__(self, http: HttpClient, timeouts: Timeouts, together: Post) -> None:
        self._http, self._timeouts, self.together = http, timeouts, together

    async def tokenize(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        deadline = Deadline(self._timeouts)
        reply = await self._http.post_json(
            "/tokenize", payload, deadline, root=True, purpose="render"
        )
        return reply.data


class RemoteDrafter:
    """Drafts with ``model`` behind ``post``, which can do ``capabilities``."""

    vocabulary: Vocabulary | None = None

    def __init__(
        self,
        name: str,
        model: str,
        post: Post,
        capabilities: Capabilities,
        continued: Continued | None = None,
        clock: Callable[[], float] = time.monotonic,
        stream: Stream | None = None,
        by_ids: IdDrafts | None = None,
    ) -> None:
        self.stream = stream
        self.by_ids = by_ids
        self.name, self.model = name, model
        self.post, self.capabilities = post, capabilities
        self.continued = continued if capabilities.prefill else None
        self.backoff = Backoff(clock, *RETRY)

    async def load(self) -> None:
        """Nothing to load."""

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> RemoteSession:
        self.backoff.check()
        if prompt.messages is None and (prompt.text is None or not self.capabilities.completions):
            raise DraftError(
                f"draft {self.name!r} can't go on from this prompt: it needs a chat, or text and a "
                "provider with /completions"
            )
        if target_vocabulary is not None:
            await asyncio.to_thread(lambda: target_vocabulary.tokens)  # made once, off the loop
        ids = self.by_ids if target_vocabulary is not None else None
        if ids is not None and target_vocabulary is not None:
            ids = ids if await ids.speaks(prompt, target_vocabulary) else None
        return RemoteSession(self, prompt, target_vocabulary, ids)

    async def aclose(self) -> None:
        """Nothing to free: the client belongs to whoever gave it."""


class RemoteSession:
    """One request's drafting, and what was drafted ahead."""

    def __init__(
        self,
        drafter: RemoteDrafter,
        prompt: Prompt,
        vocabulary: Vocabulary | None,
        by_ids: IdDrafts | None = None,
    ) -> None:
        self._by_ids = by_ids
        self._drafter, self._prompt, self._vocabulary = drafter, prompt, vocabulary
        self._whole: str | None = None
        """The answer as drafted from its start, where that is all the provider can do."""

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        """About ``k`` tokens, greedy whatever the ``temperature``."""
        began = time.perf_counter()
        if k < 1:
            return Proposal("")
        drafted = await self._drafted(committed, k)
        if drafted is not None:
            return self._in_ids(drafted, committed, k, began)
        usage: Usage | None = None
        ended = False
        if self._prompt.messages is not None and self._drafter.continued is None:
            if self._whole is None:
                ahead = max(k, AHEAD)
                self._whole, _, usage = await self._ask(Committed(), ahead)
            text = "".join(split_pieces(self._rest(committed.text))[:k])
        else:
            text, ended, usage = await self._ask(committed, k)
        seconds = time.perf_counter() - began
        if self._vocabulary is not None and committed.ids is not None:
            ids = in_context(self._vocabulary, committed.ids, text)[:k]
            whole = TextStream(self._vocabulary.decode).push(ids)
            return Proposal(whole, ids, None, False, seconds, usage)
        return Proposal(text, None, None, ended, seconds, usage)

    async def stream(self, committed: Committed, k: int) -> AsyncGenerator[Proposal]:
        """About ``k`` tokens as text, as they come. The last piece has the usage as the provider
        shows it, those before it what has been received."""
        drafter = self._drafter
        again = committed.text and self._prompt.messages is not None and drafter.continued is None
        if drafter.stream is None or again:
            yield await self.propose(replace(committed, ids=None), k)
            return
        drafter.backoff.check()
        path, body, sent, held = self._request(committed, k)
        body["stream"] = True
        if drafter.capabilities.stream_usage:
            body["stream_options"] = {"include_usage": True}
        usage, received, ended = Usage(), 0, False
        sent_about = len(str(body.get("messages") or body.get("prompt"))) // 4
        strip = [text for text in (sent, held) if text]
        said = ""
        if not committed.text:
            self._whole = ""
        try:
            async with aclosing(drafter.stream(path, body)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk.get("usage"), dict):
                        usage = Usage.from_wire(chunk["usage"])
                    ended = ended or _stopped(chunk)
                    said += _delta(chunk)
                    while strip and not strip[0].startswith(said):
                        said = said.removeprefix(strip.pop(0))
                    if strip and said != strip[0]:
                        continue
                    said = said.removeprefix(strip.pop(0)) if strip else said
                    if said:
                        received += 1
                        if not committed.text:
                            self._whole = (self._whole or "") + said
                        yield Proposal(said, usage=Usage(sent_about, received), estimated=True)
                        said = ""
        except LimitReached as error:
            raise DraftError(f"draft {drafter.name!r} was not asked: {error}") from error
        except ProviderError as error:
            raise drafter.backoff.failed(f"draft {drafter.name!r} failed: {error}") from error
        drafter.backoff.succeeded()
        if usage == Usage():
            yield Proposal(said, ended=ended, usage=Usage(sent_about, received), estimated=True)
        else:
            yield Proposal(said, ended=ended, usage=usage)

    async def aclose(self) -> None:
        self._whole = None

    async def _drafted(self, committed: Committed, k: int) -> Drafted | None:
        """The draft by ids; ``None``: to be asked for by text."""
        drafter, prompt = self._drafter, self._prompt.ids
        if self._by_ids is None or prompt is None or committed.ids is None:
            return None
        drafter.backoff.check()
        try:
            drafted = await self._by_ids.ask((*prompt, *committed.ids), k)
        except NotByIds:
            self._by_ids = None
            return None
        except LimitReached as error:
            raise DraftError(f"draft {drafter.name!r} was not asked: {error}") from error
        except ProviderError as error:
            raise drafter.backoff.failed(f"draft {drafter.name!r} failed: {error}") from error
        drafter.backoff.succeeded()
        return drafted

    def _in_ids(self, drafted: Drafted, committed: Committed, k: int, began: float) -> Proposal:
        vocabulary = self._vocabulary
        assert vocabulary is not None and committed.ids is not None
        ids = drafted.ids
        if ids is None:
            ids = in_context(vocabulary, committed.ids, drafted.text)
        ids = ids[:k]
        end = next((i for i, token in enumerate(ids) if token in vocabulary.eos_ids), None)
        ids = ids if end is None else ids[: end + 1]
        text = TextStream(vocabulary.decode).push(ids)
        seconds = time.perf_counter() - began
        return Proposal(text, ids, None, end is not None, seconds, drafted.usage)

    def _rest(self, committed: str) -> str:
        """What the draft from the start says after ``committed``; nothing once they differ."""
        whole = self._whole or ""
        return whole[len(committed) :] if whole.startswith(committed) else ""

    async def _ask(self, committed: Committed, k: int) -> tuple[str, bool, Usage]:
        drafter = self._drafter
        drafter.backoff.check()
        path, body, sent, held = self._request(committed, k)
        try:
            answer = await drafter.post(path, body)
            text, finish = _read(answer)
        except LimitReached as error:
            raise DraftError(f"draft {drafter.name!r} was not asked: {error}") from error
        except (ProviderError, ValueError) as error:
            raise drafter.backoff.failed(f"draft {drafter.name!r} failed: {error}") from error
        drafter.backoff.succeeded()
        text = text.removeprefix(sent)
        return text.removeprefix(held), finish == "stop", Usage.from_wire(answer.get("usage"))

    def _request(self, committed: Committed, k: int) -> tuple[str, dict[str, Any], str, str]:
        """(path, body, text that the answer may repeat, white space that was kept back)."""
        drafter, caps = self._drafter, self._drafter.capabilities
        body: dict[str, Any] = {"model": drafter.model, "temperature": 0, "stream": False}
        sent, held = committed.text, ""
        if self._prompt.messages is None:
            path = COMPLETIONS
            body |= {"prompt": (self._prompt.text or "") + sent, "max_tokens": k}
        else:
            path = CHAT
            body |= {"messages": list(self._prompt.messages), caps.max_tokens_param: k}
            if sent and drafter.continued is not None:
                if caps.prefill_trims is not False:
                    sent, held = split_trailing_space(sent)
                body = drafter.continued(body, sent, caps.prefill or "")
        repeated = path == CHAT and caps.prefill_repeats is not False
        return path, body, sent if repeated else "", held


def in_context(vocabulary: Vocabulary, before: tuple[int, ...], text: str) -> tuple[int, ...]:
    """Ids of ``text`` as they come after the ids ``before``; where those end inside a character,
    ``text`` begins with all of it."""
    tokens = vocabulary.tokens
    begun = unfinished(b"".join(tokens[i] or b"" for i in before[-8:]))
    said = text.encode()
    if not said.startswith(begun):
        return ()
    lead = vocabulary.decode(before[-16:]).strip("\ufffd").encode()
    return said_after(vocabulary.encode, tokens, lead + begun, said[len(begun) :])


def _delta(chunk: Mapping[str, Any]) -> str:
    """The text that a chunk of a chat or completions stream adds."""
    choices = chunk.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return ""
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choices[0].get("text")
    return text if isinstance(text, str) else ""


def _stopped(chunk: Mapping[str, Any]) -> bool:
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(c, dict) and c.get("finish_reason") == "stop" for c in choices
    )


def _read(answer: Mapping[str, Any]) -> tuple[str, str | None]:
    """Text and finish reason of a chat or completions answer. ``ValueError`` if it is neither."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("the answer has no choices with text") from None
    return text or "", finish
